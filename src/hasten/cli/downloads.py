"""The progress bar of a download: on stderr, and only if stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn


@contextmanager
def bar() -> Iterator[Callable[[int, int | None], None]]:
    """A function to call with the bytes so far and the total (None: unknown)."""
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("download", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
