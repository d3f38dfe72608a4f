"""The checkpoints of ``--checkpoints``, each with the learning rate of its last step."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hasten.errors import UsageError
from hasten.influence.trace import Checkpoint
from hasten.runs.checkpoint import checkpoint_name, numbered_checkpoints, read_checkpoint
from hasten.runs.resuming import named_checkpoint, position_of
from hasten.runs.run_folder import RunFolder


def choose_checkpoints(
    folder: RunFolder, text: str, lr_at: Callable[[int], float], load: Callable[[Path], None]
) -> list[Checkpoint]:
    """The checkpoints that a comma-separated list names, in the order of their steps, each once.

    text: ``all`` (those under ``checkpoints``), ``last`` (the newest of them), ``best``, ``final``,
    other names, and epochs. lr_at: the learning rate by step, for checkpoints that do not record
    it. load: loads the weights of a path. Raises UsageError, RunFolderError or CheckpointError.
    """
    names = [
        path.name for path in reversed(numbered_checkpoints(folder.checkpoints))
    ]  # oldest first
    chosen_names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part == "all":
            chosen_names += names
        elif part == "last":
            chosen_names += names[-1:]
        elif re.fullmatch(r"[0-9]{1,6}", part):
            chosen_names.append(checkpoint_name(int(part), 0))
        elif part:
            chosen_names.append(part)
    if not chosen_names:
        raise UsageError(
            f"--checkpoints {text}: names no checkpoint; give all, best, final, last, or epochs "
            f"such as 5,10 (the run keeps best, final, {', '.join(names)})"
        )
    by_step: dict[int, Checkpoint] = {}
    for name in chosen_names:
        path = named_checkpoint(folder, name)
        checkpoint = read_checkpoint(path, groups=())
        position, state = position_of(checkpoint), checkpoint.state
        step = int(position["step"])
        lr = float(state["lr"]) if "lr" in state else lr_at(max(0, step - 1))
        chosen = Checkpoint(name, lr, partial(load, path), int(position["epoch"]), step)
        by_step.setdefault(step, chosen)
    return [by_step[step] for step in sorted(by_step)]
