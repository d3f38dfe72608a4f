"""Options that resuming changed, recorded in ``metrics.jsonl`` for ``hasten verify``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.journal import METRICS, line_record
from hasten.runs.resuming import RESUMABLE, all_options, last_kept_step, with_changes

#: the options among them that a repetition must set as they were
_REPEATED = ("training.epochs", "training.patience", "device", "devices", "threads")


def changed_options(
    run: Path, checkpoint: Checkpoint | None, saved: RunConfig, config: RunConfig
) -> dict[str, dict[str, Any]]:
    """What a run that resumes from this checkpoint changes: ``{key: {"before", "after"}}``.

    saved: the configuration in the run folder. It is that of the checkpoint, unless later steps
    are trained again whose resumption had changed it, or a process died before it wrote it.
    """
    if checkpoint is None:  # the run begins again, with all its options as they are now
        return {}
    before, after = all_options(saved), all_options(config)
    records, last = resumptions(run), last_kept_step(checkpoint)
    for line in reversed(records):
        if line["step"] > last:
            before |= {key: each["before"] for key, each in line.get("changed", {}).items()}
    for line in records:
        if line["step"] <= last:
            before |= {key: each["after"] for key, each in line.get("changed", {}).items()}
    return {
        key: {"before": before[key], "after": after[key]}
        for key in sorted(RESUMABLE)
        if before[key] != after[key]
    }


def resumptions(run: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` about resuming, oldest first."""
    path = run / METRICS
    lines = map(line_record, path.read_bytes().split(b"\n") if path.exists() else ())
    return [line for line in lines if line is not None and line.get("event") == "resume"]


@dataclass(frozen=True)
class Stage:
    """Epochs that were trained with the same options, the last of them ``until``.

    effective: that of the record, with the device and the threads of these epochs.
    """

    until: int
    config: RunConfig
    effective: Mapping[str, Any]


@dataclass(frozen=True)
class Stages:
    """What to repeat, in order; what was changed, for people; whether that gives the same bits."""

    stages: list[Stage]
    notes: list[str]
    exact: bool


def stages_of(run: Path, config: RunConfig, effective: Mapping[str, Any], until: int) -> Stages:
    """The first epochs of a run by the options they were trained with, from those of the last."""
    lines = resumptions(run)
    if any("changed" not in line for line in lines):
        note = (
            "by a version of hasten that did not record changed options: if there were any, the "
            "result can differ, because the last ones are used from the start"
        )
        return Stages([Stage(until, config, effective)], [note], exact=True)
    result = Stages([], [], exact=True)
    for line in reversed(lines):
        epoch, within = line["epoch"], line["step_of_epoch"] > 0
        changed = {key: each for key, each in line["changed"].items() if key in _REPEATED}
        before = {key: each["before"] for key, each in changed.items()}
        if changed and epoch < until:
            exact = not _breaks(changed, config, within)
            stages, notes = [Stage(until, config, effective), *result.stages], result.notes
            notes = [_told(changed, epoch, within, exact), *notes]
            result, until = Stages(stages, notes, exact and result.exact), epoch
            before.pop("devices", None)  # all stages need the same number of micro-batches
        config = with_changes(config, before)
        effective = {**effective, **{key: before[key] for key in before if key in effective}}
    first = [Stage(until, config, effective)] if until else []
    return replace(result, stages=[*first, *result.stages])


def _breaks(changed: Collection[str], config: RunConfig, within: bool) -> bool:
    """Whether a repetition, in one process and in whole epochs, gives other bits from there on."""
    of_steps = {"device", "threads"}
    if config.training.schedule != "constant":
        of_steps.add("training.epochs")  # the learning rate
    return "devices" in changed or (within and not of_steps.isdisjoint(changed))


def _told(changed: Mapping[str, Any], epoch: int, within: bool, exact: bool) -> str:
    options = ", ".join(f"{key} {x['after']} (before: {x['before']})" for key, x in changed.items())
    description = (
        f"{f'within epoch {epoch + 1}' if within else f'after epoch {epoch}'} with {options}"
    )
    if exact:
        return description
    instead = f"only those before can: --epochs {epoch}" if epoch else "there is none before"
    return f"{description}; the epochs from there on cannot be repeated exactly ({instead})"
