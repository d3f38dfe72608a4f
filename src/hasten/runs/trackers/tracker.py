"""The interface of experiment trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["finished", "interrupted", "failed"]


class Tracker(Protocol):
    """A run in a tracker. name: of the tracker; id: of the run, there."""

    name: str
    id: str

    def record_settings(self, settings: Mapping[str, Any], about: Mapping[str, str]) -> None:
        """Options by dotted key; about: protocol, device, data, versions."""
        ...

    def record(self, values: Mapping[str, float], step: int) -> None:
        """Finite numbers by name, such as ``valid/ndcg@10``, after an optimizer step."""
        ...

    def keep(self, files: Sequence[Path]) -> None:
        """Upload files and folders."""
        ...

    def finish(self, status: Status) -> None:
        """End the run in the tracker."""
        ...
