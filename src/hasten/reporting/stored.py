"""The contents of a run folder that a report reads, whether or not the run has ended."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hasten.comparison.finished import read_summary
from hasten.config import RunConfig
from hasten.config_loading.build import load_config
from hasten.errors import RunFolderError
from hasten.evaluation.metrics import higher_is_better
from hasten.reporting.blocks import Point
from hasten.runs.ending import ending
from hasten.runs.journal import METRICS
from hasten.runs.lock import lock_holder
from hasten.runs.record import RECORD
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary

#: keys of a record that are no curve
_NO_CURVE = ("epoch", "step", "time", "nodes", "width")


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run folder as it is. summary: None while the run has not ended.

    data, environment: ``data.json`` and ``environment.json``; record: ``record.json``, or empty;
    lines: the records of ``metrics.jsonl``.
    """

    path: Path
    config: RunConfig
    summary: Summary | None
    data: dict[str, Any]
    environment: dict[str, Any]
    record: dict[str, Any]
    lines: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """Raises RunFolderError if the folder is no run or damaged."""
        folder = RunFolder.open(path, lock=False)
        ended = (path / "metrics.json").is_file()
        return cls(
            path,
            load_config(path / "config.yaml"),
            read_summary(folder) if ended else None,
            folder.read_json("data.json"),
            folder.read_json("environment.json"),
            folder.read_json(RECORD) if (path / RECORD).is_file() else {},
            tuple(_lines(path / METRICS)),
        )

    @property
    def model(self) -> str:
        return self.config.model.name

    @property
    def metric(self) -> str:
        """The metric that selects the checkpoint."""
        return self.config.evaluation.metrics[0]

    @property
    def valid(self) -> dict[str, float]:
        """Validation metrics of the selected checkpoint; of a run that goes on, the best so far."""
        if self.summary is not None:
            return dict(self.summary.valid)
        best = self._best
        return {} if best is None else {k: v for k, v in best.items() if k not in _OWN}

    @property
    def best_epoch(self) -> int | None:
        if self.summary is not None:
            return self.summary.best_epoch
        return None if self._best is None else int(self._best["epoch"])

    @property
    def test(self) -> dict[str, float]:
        """Test metrics, empty as long as the test part is sealed."""
        return {} if self.summary is None else dict(self.summary.test)

    @property
    def epochs(self) -> int:
        if self.summary is not None:
            return self.summary.epochs
        return max((int(line["epoch"]) for line in self.lines), default=0)

    @property
    def status(self) -> list[str]:
        """How the run ended, in sentences; or that it has not."""
        if self.summary is not None:
            return ending(self.summary)
        done = f"after {self.epochs} epoch{'s' * (self.epochs != 1)}" if self.epochs else "so far"
        with suppress(RunFolderError, OSError):
            if holder := lock_holder(self.path):
                return [f"still running {done}, in {holder}"]
        stop = self.record.get("ended")
        reason = f" ({stop})" if stop else ""
        return [f"not finished{reason} {done}: continue it with  hasten resume {self.path}"]

    def curves(self, kind: str) -> dict[str, list[Point]]:
        """The values of the records of a kind (``train``, ``valid``, ``health``) by epoch."""
        curves: dict[str, list[Point]] = {}
        for line in self.lines:
            if line["kind"] == kind:
                for name, value in line.items():
                    if name not in _NO_CURVE and isinstance(value, int | float):
                        curves.setdefault(name, []).append((line["epoch"], float(value)))
        return curves

    @cached_property
    def _best(self) -> dict[str, Any] | None:
        known = [line for line in self.lines if line["kind"] == "valid"
                 and isinstance(line.get(self.metric), float)]  # fmt: skip
        choose = max if higher_is_better(self.metric) else min
        return choose(known, key=lambda line: line[self.metric]) if known else None


_OWN = ("kind", "epoch", "step", "time")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The records of a log; damaged lines, such as one that is being written, are left out."""
    lines = []
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with suppress(ValueError, RecursionError):
                line = json.loads(text)
                if isinstance(line, dict) and "kind" in line and isinstance(line.get("epoch"), int):
                    lines.append(line)
    return lines
