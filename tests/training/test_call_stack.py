"""Five files of hasten lie between the command line and the optimizer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hasten
from hasten.cli.main import main
from hasten.training.optimizers import row_adam
from hasten.training.optimizers.row_adam import RowAdam

SOURCE = Path(hasten.__file__).parent
EXPECTED = {"cli/main.py", "cli/train.py", "run.py", "training/trainer.py", "training/step.py"}


def files_of_hasten() -> set[str]:
    """The files of hasten on the call stack."""
    found, frame = set(), sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            found.add(path.relative_to(SOURCE).as_posix())
        frame = frame.f_back
    return found


@pytest.mark.parametrize(("model", "by_rows"), [("sasrec", False), ("kgat", True)])
def test_five_files_from_the_command_to_the_optimizer_step(model, by_rows, tmp_path, monkeypatch):
    stacks: list[set[str]] = []
    kinds = set()

    def look(optimizer: Any, _arguments: Any, _named: Any) -> None:
        stacks.append(files_of_hasten())
        kinds.add(type(optimizer))

    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", 1)
    command = ["train", model, "--epochs", "1", "--device", "cpu", "--threads", "1", "--quiet"]
    handle = register_optimizer_step_pre_hook(look)
    try:
        assert main([*command, "--out", str(tmp_path / "run")]) == 0
    finally:
        handle.remove()
    assert stacks
    assert all(found == EXPECTED for found in stacks)
    assert (RowAdam in kinds) == by_rows
