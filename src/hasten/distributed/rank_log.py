"""The log file of a process other than rank 0, in the run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from hasten.console import escape_controls
from hasten.errors import HastenError, os_errors_as
from hasten.runs.journal import open_log


class RankLog:
    """Replaces :class:`hasten.runs.journal.Journal` on ranks above 0.

    Log lines go to ``train-rank<k>.log``; only rank 0 writes metrics and TensorBoard.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"train-rank{rank}.log"
        with self._os_errors():
            folder.mkdir(parents=True, exist_ok=True)  # another machine without a shared disk
            self._file = open_log(self._path)

    def record(
        self, kind: str, epoch: int, step: int, values: Mapping[str, float | str | int]
    ) -> None:
        """Do nothing: rank 0 records."""

    def log_train(self, text: str) -> None:
        """Log a line."""
        with self._os_errors():
            self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape_controls(text)}\n")
            self._file.flush()

    def log_valid(self, text: str) -> None:
        """Do nothing: rank 0 logs it."""

    def warn(self, text: str) -> None:
        """Log a warning; rank 0 also shows it."""
        self.log_train(f"warning: {text}")

    def __enter__(self) -> RankLog:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.log_train(f"ended by {type(error).__name__}: {error}")
        self._file.close()

    def _os_errors(self) -> AbstractContextManager[None]:
        return os_errors_as(HastenError, "cannot be written", self._path)
