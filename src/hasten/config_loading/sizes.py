"""Sizes of memory as text."""

from __future__ import annotations

import re

from hasten.errors import UsageError

_UNITS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def parse_size(name: str, size: str | int) -> int:
    """The bytes of ``10GB``, ``500MB`` or a number of bytes; name: of the option."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]b|)", str(size).strip().lower())
    if match is None:
        raise UsageError(f"{name} {size}: expected a size such as 2GB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])
