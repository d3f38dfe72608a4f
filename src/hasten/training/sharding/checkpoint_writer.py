"""Write the checkpoints of a run: rank 0 writes the files, the others send rows of their tables."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.runs.checkpoint import send_rows, write_checkpoint
from hasten.runs.resuming import fixed_options
from hasten.training.sharding.tables import ShardedTables
from hasten.training.state import TrainingState


class CheckpointWriter:
    """Writes the training state; called on all processes."""

    def __init__(
        self, config: RunConfig, state: TrainingState, tables: ShardedTables, processes: Processes
    ) -> None:
        self.config, self.state, self.tables = config, state, tables
        self.processes = processes
        #: position -> the last checkpoint
        self.written: dict[tuple[int, ...], Path] = {}
        #: position of the last numbered checkpoint, from which a run is resumed
        self.saved: tuple[int, ...] | None = None

    @property
    def is_saved(self) -> bool:
        """Whether the current position has a numbered checkpoint."""
        return self.saved == astuple(self.state.position)

    def write(self, folder: Path, numbered: bool = False) -> None:
        """Write a checkpoint; with no step since the last one, its tensors are linked.

        numbered: a run can be resumed from it without being told its name.
        """
        if numbered:
            self.saved = astuple(self.state.position)
        if self.processes.is_rank0:
            state = {**self.state.to_json(), "config": fixed_options(self.config)}
            position = astuple(self.state.position)
            # the other processes send their rows in any case
            same = None if self.tables else self.written.get(position)
            write_checkpoint(folder, self.tables.whole(self.state.tensors()), state, same)
            self.written = {position: folder}
        elif self.tables:
            send_rows(self.tables.whole(self.state.tensors()))
