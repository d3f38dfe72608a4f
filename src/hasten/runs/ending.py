"""Why a run ended, whether it was still improving, and the command to continue it."""

from __future__ import annotations

import json
from contextlib import suppress

from hasten.evaluation.metrics import higher_is_better
from hasten.runs.journal import METRICS
from hasten.runs.summary import Summary

_REASONS = {
    "epochs": "finished",
    "max_time": "time limit (training.max_time)",
    "callback": "a callback asked for it",
}
#: the relative gain of the last evaluation from which on a run is far from trained
_FAR = 0.1


def ending(summary: Summary) -> list[str]:
    """Lines for people: the reason; if the last evaluation was the best, how to go on."""
    count = summary.epochs
    if not summary.examples_per_second and summary.stopped_by == "epochs":
        return ["finished"]  # a model without gradient steps
    if summary.stopped_by == "imported":
        return [f"imported; train on with  hasten resume {summary.run}"]
    reason = _REASONS.get(summary.stopped_by, f"early stopping: {summary.stopped_by}")
    lines = [f"{reason} after {count} epoch{'s' * (count != 1)}, best epoch {summary.best_epoch}"]
    if summary.stopped_by not in _REASONS or not summary.valid or summary.best_epoch != count:
        return lines
    goes_on = f"resume with  hasten resume {summary.run}"
    goes_on += "" if summary.stopped_by == "max_time" else f" --epochs {2 * count}"
    curve, metric = _curve(summary), next(iter(summary.valid))
    if len(curve) < 2:
        return [*lines, f"too short to tell whether it was still improving: {goes_on}"]
    last, before = curve[-1], (max if higher_is_better(metric) else min)(curve[:-1])
    far = abs(last - before) > _FAR * abs(before)
    assessment = f"far from trained ({metric} {before:.4f} to {last:.4f}), " if far else ""
    return [*lines, f"{assessment}still improving when it stopped: {goes_on}"]


def _curve(summary: Summary) -> list[float]:
    """The validation metric that selects the checkpoint, after every evaluation."""
    metric, values = next(iter(summary.valid)), []
    with suppress(OSError), (summary.run / METRICS).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                record = json.loads(line)
                if record.get("kind") == "valid" and isinstance(record.get(metric), float):
                    values.append(record[metric])
    return values
