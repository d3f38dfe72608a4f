"""The records of a run: ``metrics.jsonl``, TensorBoard, ``train.log``, ``val.log``, stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import HastenError
from hasten.runs.atomic_write import write_atomically
from hasten.runs.exact_json import to_plain_json

if TYPE_CHECKING:
    from hasten.runs.run_folder import RunFolder

METRICS, TRAIN_LOG, VALID_LOG = "metrics.jsonl", "train.log", "val.log"

_OWN_KEYS = ("kind", "epoch", "step", "time")


class Journal:
    """Writes what a run tells of itself; used by one process, the one that holds the folder.

    resume_step: the step of the checkpoint a run goes on from, counted over the whole run. Records
    of later steps are dropped first, so that the resumed run's records are those of an unbroken
    one. For the same reason a record is made before the checkpoint of its step is saved.
    Raises HastenError if a file cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        quiet: bool,
        tensorboard: bool = True,
        resume_step: int | None = None,
    ) -> None:
        self._folder = folder.path
        self._quiet = quiet
        self._board: Any = None
        try:
            dropped = _repair(self._folder / METRICS, resume_step)
            with ExitStack() as stack:
                self._metrics, self._train, self._valid = (
                    stack.enter_context((self._folder / name).open("a", encoding="utf-8"))
                    for name in (METRICS, TRAIN_LOG, VALID_LOG)
                )
                if tensorboard:
                    # late: it takes a tenth of a second that other commands need not wait
                    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

                    purge = None if resume_step is None else resume_step + 1
                    self._board = stack.enter_context(
                        SummaryWriter(str(self._folder), purge_step=purge)
                    )
                self._files = stack.pop_all()
        except OSError as error:
            raise self._failure(error) from error
        if dropped:
            self.warn(f"{METRICS}: {dropped} damaged lines were dropped")

    def record(
        self,
        kind: Literal["train", "valid", "test", "event", "health"],
        epoch: int,
        step: int,
        values: Mapping[str, float | str | int],
    ) -> None:
        """Append one line to ``metrics.jsonl``; numbers go to TensorBoard as well."""
        assert not set(values) & set(_OWN_KEYS), f"these keys are taken: {_OWN_KEYS}"
        now = time.time()
        own = {"kind": kind, "epoch": epoch, "step": step, "time": round(now, 3)}
        try:
            self._metrics.write(to_plain_json({**own, **values}) + "\n")
            self._metrics.flush()
            if self._board is not None and kind != "event":
                for name, value in values.items():
                    if not isinstance(value, str) and math.isfinite(value):
                        self._board.add_scalar(f"{kind}/{name}", value, step, walltime=now)
        except OSError as error:
            raise self._failure(error) from error

    def train(self, text: str) -> None:
        """A line for people in ``train.log``, shown on stderr too unless quiet."""
        self._log(self._train, text, shown=not self._quiet)

    def valid(self, text: str) -> None:
        """A line for people in ``val.log``."""
        self._log(self._valid, text, shown=False)

    def warn(self, text: str) -> None:
        """A warning in ``train.log``, shown even when quiet."""
        self._log(self._train, f"warning: {text}", shown=True)

    def close(self) -> None:
        """Flush and close all files."""
        try:
            self._files.close()
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _log(self, file: Any, text: str, shown: bool) -> None:
        line = escape_controls(text)
        try:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
            file.flush()
        except OSError as error:
            raise self._failure(error) from error
        if shown:
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - what people read while it runs

    def _failure(self, error: OSError) -> HastenError:
        where = error.filename or self._folder
        return HastenError(f"{where}: the records cannot be written: {error.strerror}")


def escape_controls(text: str) -> str:
    """The text on one line: controls, line ends and direction marks as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _repair(path: Path, resume_step: int | None) -> int:
    """Drop what a resumed run records again, and damaged lines; how many were damaged.

    Recorded again are the steps after ``resume_step``, and the test, which belongs to the end of a
    run. A last line without an end was being written when the process died: that is no damage.
    """
    if not path.exists():
        return 0
    content = path.read_bytes()
    *lines, _torn = content.split(b"\n")
    kept, damaged = [], 0
    for line in lines:
        record = _record(line)
        if record is None:
            damaged += 1
        elif resume_step is None or (record["step"] <= resume_step and record["kind"] != "test"):
            kept.append(line + b"\n")
    whole = b"".join(kept)
    if whole != content:
        write_atomically(path, whole)
    return damaged


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for one that is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if isinstance(record, dict) and isinstance(record.get("step"), int) and "kind" in record:
        return record
    return None
