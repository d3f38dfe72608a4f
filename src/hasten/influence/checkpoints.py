"""Which checkpoints of a run are traced, each with the learning rate at which it was reached."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hasten.errors import UsageError
from hasten.runs.checkpoint import checkpoint_name, read_checkpoint
from hasten.runs.resuming import named_checkpoint
from hasten.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Traced:
    """A checkpoint: its name, how far the run was, and the learning rate of its last step."""

    name: str
    path: Path
    epoch: int
    step: int
    lr: float


def choose(folder: RunFolder, text: str, lr_at: Callable[[int], float]) -> list[Traced]:
    """The checkpoints of ``all``, ``last``, or names and numbers of epochs divided by commas.

    all: those kept under ``checkpoints``; last: the newest of them; ``best`` and ``final`` are
    names too. lr_at: the schedule by step, for checkpoints that do not record it. In the order of
    their steps, each once. Raises UsageError, RunFolderError or CheckpointError.
    """
    names = _names(folder)
    wanted: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part == "all":
            wanted += names
        elif part == "last":
            wanted += names[-1:]
        elif re.fullmatch(r"[0-9]{1,6}", part):
            wanted.append(checkpoint_name(int(part), 0))
        elif part:
            wanted.append(part)
    if not wanted:
        raise UsageError(
            f"--checkpoints {text}: no checkpoint is meant; give all, best, final, last, or epochs "
            f"such as 5,10 (the run keeps best, final, {', '.join(names)})"
        )
    found: dict[int, Traced] = {}
    for name in wanted:
        path = named_checkpoint(folder, name)
        state = read_checkpoint(path, groups=()).state
        position = state["position"]
        step = int(position["step"])
        lr = float(state["lr"]) if "lr" in state else lr_at(max(0, step - 1))
        found.setdefault(step, Traced(name, path, int(position["epoch"]), step, lr))
    return [found[step] for step in sorted(found)]


def _names(folder: RunFolder) -> list[str]:
    """Checkpoints that are kept, oldest first."""
    if not folder.checkpoints.is_dir():
        return []
    named = [p.name for p in folder.checkpoints.iterdir() if p.name.startswith("epoch-")]
    return sorted(named, key=lambda name: [int(n) for n in re.findall(r"[0-9]+", name)])
