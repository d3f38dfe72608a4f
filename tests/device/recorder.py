"""What a simulated device was asked to do: kernels, copies, synchronizations, mistakes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hasten

SOURCE = str(Path(hasten.__file__).parent) + "/"

#: an operation: its name, the shapes and types of its tensors, its other arguments
Call = tuple[str, tuple[Any, ...], tuple[Any, ...]]


@dataclass
class Recorder:
    """Counts of one stretch of work; every event with the line of hasten's source that caused it.

    kernels: operations that launch work, by name; uploads and downloads: copies to and from the
    device; waits: where the host waits for the device, with blocking copies among them; mistakes:
    what fails or is missing on a real device; calls: the operations in order.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    downloads: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    calls: list[Call] = field(default_factory=list)

    def upload(self, shape: object, *, blocking: bool) -> None:
        self._copy(self.uploads, f"to the device {tuple(shape)}", blocking)

    def download(self, shape: object, *, blocking: bool) -> None:
        self._copy(self.downloads, f"to the host {tuple(shape)}", blocking)

    def _copy(self, counter: Counter[str], what: str, blocking: bool) -> None:
        event = f"{what} at {caller()}"
        counter[event] += 1
        if blocking:
            self.waits[event] += 1

    def wait(self, what: str) -> None:
        self.waits[f"{what} at {caller()}"] += 1

    def mistake(self, what: str) -> None:
        self.mistakes[f"{what} at {caller()}"] += 1

    def figures(self) -> dict[str, int]:
        """The counts of everything."""
        return {
            "kernels": self.kernels.total(),
            "uploads": self.uploads.total(),
            "downloads": self.downloads.total(),
            "waits": self.waits.total(),
        }


def caller() -> str:
    """The innermost line of hasten's source on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            return f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"


#: what counts now; outside of :func:`recording` nobody reads it
_current = [Recorder()]


def current() -> Recorder:
    return _current[-1]


@contextmanager
def recording() -> Iterator[Recorder]:
    """Count what happens in this block, and nothing of it in an outer one."""
    _current.append(Recorder())
    try:
        yield _current[-1]
    finally:
        _current.pop()


def difference(first: Recorder, second: Recorder) -> str | None:
    """How the second stretch of work differs from the first; None: a captured graph serves both.

    Operations, their order, shapes and types must be equal, and so must all their other arguments,
    such as a learning rate or the bounds of a slice: a graph replays those of its capture.
    """
    for number, (one, other) in enumerate(zip(first.calls, second.calls, strict=False)):
        for part, what in enumerate(("operation", "shapes", "arguments")):
            if one[part] != other[part]:
                return f"{what} of call {number} ({one[0]}): {one[part]} and {other[part]}"
    counts = len(first.calls), len(second.calls)
    return None if counts[0] == counts[1] else f"numbers of calls: {counts[0]} and {counts[1]}"
