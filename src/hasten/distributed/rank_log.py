"""The log file of a process other than rank 0, in the run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from hasten.errors import HastenError
from hasten.runs.journal import escape_controls, open_log


class RankLog:
    """Replaces :class:`hasten.runs.journal.Journal` on ranks above 0.

    Log lines go to ``train-rank<k>.log``; only rank 0 writes metrics and TensorBoard.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"train-rank{rank}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)  # another machine without a shared disk
            self._file = open_log(self._path)
        except OSError as error:
            raise self._failure(error) from error

    def record(
        self, kind: str, epoch: int, step: int, values: Mapping[str, float | str | int]
    ) -> None:
        """Do nothing: rank 0 records."""

    def log_train(self, text: str) -> None:
        """Log a line."""
        try:
            self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape_controls(text)}\n")
            self._file.flush()
        except OSError as error:
            raise self._failure(error) from error

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

    def _failure(self, error: OSError) -> HastenError:
        return HastenError(f"{self._path}: cannot be written: {error.strerror or error}")
