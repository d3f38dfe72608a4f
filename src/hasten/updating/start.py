"""The start of an updated run: weights and optimizer state of the run, for the joined data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.build import build_model
from hasten.config import RunConfig
from hasten.data.columns import counter_random as counter
from hasten.data.left_out import FILE, leave_out, save_left_out
from hasten.data.tables import TRAIN, Dataset
from hasten.models.interface import Model
from hasten.models.rows import KnownRows, Rows, carried, grown_weights
from hasten.objectives.base import Phase
from hasten.runs.checkpoint import Checkpoint, checkpoint_name, write_checkpoint
from hasten.runs.manifest import MANIFEST, STATE
from hasten.runs.resuming import fixed_options
from hasten.runs.run_folder import RunFolder
from hasten.training.early_stopping import EarlyStopping
from hasten.training.optimizers.adam import PENDING
from hasten.training.state import Position, Totals
from hasten.updating.joined import Joined


@dataclass(frozen=True, eq=False)
class Start:
    """An updated run before its first step.

    left_out: bool [n], training rows that it does not train on; None: none.
    """

    model: Model
    phases: Sequence[Phase]
    best: Checkpoint
    tensors: dict[str, dict[str, Tensor]]
    left_out: NDArray[np.bool_] | None
    about: dict[str, Any]

    @classmethod
    def of(
        cls,
        config: RunConfig,
        joined: Joined,
        known: KnownRows,
        best: Checkpoint,
        replay: float | None,
    ) -> Start:
        """Build the model of the joined data with the weights and moments of the run.

        best: the checkpoint of the run. replay: the share of users without new events that are
        trained on; None: all rows are.
        """
        dataset, left_out, about = joined.dataset, None, {}
        if replay is not None:
            left_out = left_out_rows(joined, replay, config.seed)
            about = {"replay": replay, "left_out": int(left_out.sum())}
        model = build_model(config, dataset, torch.device("cpu"), for_training=True)
        initial, old = model.state_dict(), best.tensors["weights"]
        model.load_state_dict(grown_weights(old, initial, model.rows_of(), known, dataset))
        trained = dataset if left_out is None else leave_out(dataset, left_out)
        phases = model.phases(trained, config.training)
        averages = config.training.average is not None
        tensors = start_tensors(model, phases, best, known, averages)
        return cls(model, phases, best, tensors, left_out, about)

    @property
    def files(self) -> list[str]:
        """What :meth:`write` writes."""
        names = [*(f"{group}.safetensors" for group in self.tensors), STATE, MANIFEST]
        folder = f"checkpoints/{checkpoint_name(0, 0)}"
        rows = [] if self.left_out is None else [f"data/{FILE}"]
        return [*(f"{folder}/{name}" for name in names), *rows]

    def write(self, folder: RunFolder, config: RunConfig) -> None:
        """Write the checkpoint from which the run is trained, and which rows are left out."""
        if self.left_out is not None:
            save_left_out(self.left_out, folder.data)
        state = start_state(config, self.phases, self.best)
        write_checkpoint(folder.checkpoints / checkpoint_name(0, 0), self.tensors, state)


def left_out_rows(joined: Joined, replay: float, seed: int) -> NDArray[np.bool_]:
    """The training rows of users without new ones, but for a share of these users.

    replay: the share. The random number of a user depends on the seed and their position.
    """
    dataset = joined.dataset
    assert isinstance(dataset, Dataset)
    users, user = len(dataset.users), dataset.interactions.user
    trains = dataset.part == TRAIN
    renewed = np.zeros(users, bool)
    renewed[user[trains & ~joined.trained]] = True
    bits = counter.bits(counter.key(seed, counter.Stream.SPLIT, 3), users)
    chosen = bits.astype(np.float64) / 2.0**64 < replay
    return np.asarray(trains & ~(renewed | chosen)[user])


def start_tensors(
    model: Model, phases: Sequence[Phase], best: Checkpoint, known: KnownRows, averages: bool
) -> dict[str, dict[str, Tensor]]:
    """The tensors of the first checkpoint: weights, moments (0 for new rows), states of phases."""
    weights = dict(model.state_dict())
    names = {parameter: name for name, parameter in model.named_parameters()}
    rows, moments, states = model.rows_of(), {}, {}
    for phase in phases:
        of_number = [names[parameter] for parameter in phase.parameters()]
        for key, value in best.tensors["optimisers"].items():
            owner, number, field = key.rsplit(".", 2)
            if owner == phase.name and not field.startswith(PENDING):
                name = of_number[int(number)]
                moments[key] = _moment(value, weights[name], rows.get(name), known)
        phase.end_epoch(0, 0)  # what follows from the weights, such as attention
        states.update({f"{phase.name}.{key}": value for key, value in phase.state().items()})
    tensors = {"weights": weights, "optimisers": moments, "phases": states}
    return tensors | ({"training": weights} if averages else {})


def _moment(value: Tensor, weight: Tensor, rows: Rows | None, known: KnownRows) -> Tensor:
    if rows is None or value.dim() != weight.dim():  # of no vocabulary, or a number of steps
        return value
    return carried(value, torch.zeros_like(weight), rows, known)


def start_state(config: RunConfig, phases: Sequence[Phase], best: Checkpoint) -> dict[str, Any]:
    """The state of the first checkpoint: before the first step, with the run's loss scales."""
    options, saved = config.training, best.state["steps"]
    selection = EarlyStopping(config.evaluation.metrics[0], options.patience)
    steps: Mapping[str, Any] = {
        phase.name: {"precision": saved[phase.name]["precision"], "bad": 0, "bad_in_a_row": 0}
        for phase in phases
    }
    return {
        "position": asdict(Position()),
        "lr": 0.0,
        "totals": asdict(Totals()),
        "selection": selection.state(),
        "averaged": None if options.average is None else 0,
        "steps": steps,
        "compiled": [],
        "retreats": [],
        "pinned": {},
        "config": fixed_options(config),
    }
