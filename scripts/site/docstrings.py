"""An extension of Griffe: Sphinx roles in docstrings become code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """Write :class:`name` as `name`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
