"""Weights & Biases: offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` uploads later."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from hasten.runs.trackers.tracker import Status


class WandbTracker:
    """A run of Weights & Biases. known: its id, if it continues."""

    name = "wandb"

    def __init__(self, project: str, run: str, known: str | None) -> None:
        import wandb  # noqa: PLC0415 - optional

        self.id = known or uuid4().hex[:12]
        self.run = wandb.init(
            project=project,
            name=run,
            id=self.id,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            settings=wandb.Settings(silent=True, console="off"),
        )

    def record_settings(self, settings: Mapping[str, Any], about: Mapping[str, str]) -> None:
        changed = {**settings, **about}
        self.run.config.update(changed, allow_val_change=True)  # type: ignore[no-untyped-call]

    def record(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def keep(self, files: Sequence[Path]) -> None:
        import wandb  # noqa: PLC0415 - optional

        artifact = wandb.Artifact(f"run-{self.id}", type="run")
        for path in files:
            if path.is_dir():
                artifact.add_dir(str(path), name=path.name)
            else:
                artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def finish(self, status: Status) -> None:
        self.run.finish(exit_code=0 if status == "finished" else 1)
