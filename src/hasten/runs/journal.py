"""The logs of a run: ``metrics.jsonl``, trackers, TensorBoard, logs and stderr."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from hasten.atomic_write import open_regular, write_atomically
from hasten.config import LoggingOptions
from hasten.console import escape_controls, write_stderr
from hasten.errors import HastenError, os_errors_as
from hasten.runs.exact_json import to_plain_json
from hasten.runs.trackers.open import artifacts, open_trackers
from hasten.runs.trackers.tracker import Status, Tracker

if TYPE_CHECKING:
    from hasten.runs.run_folder import RunFolder

METRICS, TRAIN_LOG, VALID_LOG = "metrics.jsonl", "train.log", "val.log"

_OWN_KEYS = ("kind", "epoch", "step", "time")


class Journal:
    """Writes the logs of a run; only the process that locks the run folder has one.

    resume_step: the global step of the checkpoint that the run resumes from. Records of later steps
    are deleted, so that the records equal those of an uninterrupted run. For the same reason, write
    the record of a step before its checkpoint. Raises HastenError if a file cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        quiet: bool,
        tensorboard: bool = True,
        resume_step: int | None = None,
        logging: LoggingOptions | None = None,
    ) -> None:
        self._folder = folder.path
        self._logging = logging or LoggingOptions()
        self._trackers: list[Tracker] = []
        self._quiet = quiet
        self._board: Any = None
        with self._os_errors(), ExitStack() as stack:
            damaged = _repair(self._folder / METRICS, resume_step)
            self._metrics, self._train, self._valid = (
                stack.enter_context(open_log(self._folder / name))
                for name in (METRICS, TRAIN_LOG, VALID_LOG)
            )
            if tensorboard and find_spec("tensorboard") is not None:
                # imported here: it takes a tenth of a second
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

                purge = None if resume_step is None else resume_step + 1
                self._board = stack.enter_context(
                    SummaryWriter(str(self._folder), purge_step=purge)
                )
            self._files = stack.pop_all()
        if damaged:
            self.warn(f"{METRICS}: {damaged} damaged lines were dropped")
        self._trackers = open_trackers(self._logging, folder, self.log_train)

    def record(
        self,
        kind: Literal["train", "valid", "test", "event", "health"],
        epoch: int,
        step: int,
        values: Mapping[str, Any],
    ) -> None:
        """Append a line to ``metrics.jsonl`` and the numbers to TensorBoard."""
        assert not set(values) & set(_OWN_KEYS), f"these keys are reserved: {_OWN_KEYS}"
        now = time.time()
        line = {"kind": kind, "epoch": epoch, "step": step, "time": round(now, 3)}
        with self._os_errors():
            self._metrics.write(to_plain_json({**line, **values}) + "\n")
            self._metrics.flush()
            if self._board is not None and kind != "event":
                for name, value in values.items():
                    if not isinstance(value, str) and math.isfinite(value):
                        self._board.add_scalar(f"{kind}/{name}", value, step, walltime=now)
        if kind != "event":
            numbers = {
                f"{kind}/{name}": float(value)
                for name, value in values.items()
                if not isinstance(value, str) and math.isfinite(value)
            }
            self._track(lambda tracker: tracker.record(numbers, step))

    def _track(self, tell: Callable[[Tracker], None]) -> None:
        """Tell every tracker. One that fails is left out from here on: training is worth more."""
        for tracker in list(self._trackers):
            try:
                tell(tracker)
            except Exception as error:  # noqa: BLE001 - of a server or another package
                self._trackers.remove(tracker)
                with suppress(Exception):
                    tracker.finish("failed")
                self.warn(f"logging.to={tracker.name} failed and gets nothing more: {error}")

    def record_settings(
        self, settings: Mapping[str, Any], metrics: Sequence[str], about: Mapping[str, str]
    ) -> None:
        """Give TensorBoard and the trackers the hyperparameters.

        metrics: tags of the metrics (``valid/mrr``). about: protocol, device and data, for the
        trackers.
        """
        self._track(lambda tracker: tracker.record_settings(settings, about))
        if self._board is None:
            return
        from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415 - as above

        plain = {k: v if isinstance(v, int | float | str) else str(v) for k, v in settings.items()}
        with self._os_errors():
            summaries = hparams(plain, dict.fromkeys(metrics, 0.0))  # type: ignore[no-untyped-call]
            for summary in summaries:
                self._board.file_writer.add_summary(summary)

    def log_train(self, text: str) -> None:
        """Log a line to ``train.log``, and to stderr unless quiet."""
        self._log(self._train, text, shown=not self._quiet)

    def log_valid(self, text: str) -> None:
        """Log a line to ``val.log``."""
        self._log(self._valid, text, shown=False)

    def warn(self, text: str) -> None:
        """Log a warning to ``train.log`` and to stderr, even if quiet."""
        self._log(self._train, f"warning: {text}", shown=True)

    def finish(self, status: Status) -> None:
        """End the run in the trackers, which keep the files of ``logging.artifacts``."""
        if files := artifacts(self._logging, self._folder):
            self._track(lambda tracker: tracker.keep(files))
        self._track(lambda tracker: tracker.finish(status))
        self._trackers.clear()

    def close(self) -> None:
        """Flush and close all files; end trackers as failed if :meth:`finish` was not called."""
        self._track(lambda tracker: tracker.finish("failed"))
        with self._os_errors():
            self._files.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log(self, file: TextIO, text: str, shown: bool) -> None:
        line = escape_controls(text)
        with self._os_errors():
            _write_line(file, line)
        if shown and not write_stderr(line):
            self._log(self._train, "stderr is closed; the log continues in this file", shown=False)

    def _os_errors(self) -> AbstractContextManager[None]:
        return os_errors_as(HastenError, "the records cannot be written", self._folder)


class RankLog:
    """Replaces :class:`Journal` on ranks above 0.

    Log lines go to ``train-rank<k>.log``; only rank 0 writes metrics and TensorBoard.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"train-rank{rank}.log"
        with self._os_errors():
            folder.mkdir(parents=True, exist_ok=True)  # another machine without a shared disk
            self._file = open_log(self._path)

    def record(self, kind: str, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Do nothing: rank 0 records."""

    def record_settings(
        self, settings: Mapping[str, Any], metrics: Sequence[str], about: Mapping[str, str]
    ) -> None:
        """Do nothing: rank 0 records."""

    def finish(self, status: Status) -> None:
        """Do nothing: rank 0 records."""

    def log_train(self, text: str) -> None:
        """Log a line."""
        with self._os_errors():
            _write_line(self._file, escape_controls(text))

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


def open_log(path: Path) -> TextIO:
    """Open a log file to append to, never through a symbolic link."""
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")


def _write_line(file: TextIO, line: str) -> None:
    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
    file.flush()


def _repair(path: Path, resume_step: int | None) -> int:
    """Delete damaged lines and those that a resumed run writes again; returns the damaged ones.

    A resumed run repeats the steps after ``resume_step`` and the test. A last line without a line
    break was being written when the process ended and does not count as damaged.
    """
    if not path.exists():
        return 0
    content = path.read_bytes()
    *lines, _torn = content.split(b"\n")
    valid_lines, damaged = [], 0
    for line in lines:
        record = line_record(line)
        if record is None:
            damaged += 1
        elif resume_step is None or (record["step"] <= resume_step and record["kind"] != "test"):
            valid_lines.append(line + b"\n")
    whole = b"".join(valid_lines)
    if whole != content:
        write_atomically(path, whole)
    return damaged


def line_record(line: bytes) -> dict[str, Any] | None:
    """The record of a line of ``metrics.jsonl``; None if it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and isinstance(record.get("step"), int) and "kind" in record:
        return record
    return None
