"""Measure a few training steps and evaluation tiles of a run.

Everything before the first step and after the last evaluation is that of a real run, in a run
folder that is deleted afterwards. The process must be fresh, because its peak memory is measured.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.query_tiles import TileShape
from hasten.evaluation.ranker import evaluate
from hasten.new_run import new_run
from hasten.planning.memory_parts import MemoryParts, SavedActivations
from hasten.runs.environment import peak_memory_bytes, reset_peak_memory
from hasten.runs.progress import Progress
from hasten.training.control_flags import epochs_between_saves
from hasten.training.memory.device import peak_bytes, reset_peak
from hasten.training.trainer import Trainer
from hasten.training_run import TrainingRun, open_run

#: seconds that steps, and tiles of an evaluation, are measured for, and how many at least and most
_SECONDS, _MIN_STEPS, _MAX_STEPS = 1.0, 3, 50
#: most epochs of which steps are taken, and the seconds after which no third one begins
_EPOCHS, _LIMIT = 12, 7.0


#: the options of training that decide about memory and time
SETTINGS = ("batch_size", "accumulate", "recompute", "precision", "compile", "cleanup_every")


@dataclass
class PhaseCost:
    """What a phase costs.

    count: the steps to take in an epoch; epochs: seconds of each epoch, from these steps.
    """

    count: int
    epochs: list[float] = field(default_factory=list)


def probe(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Start a run in ``folder``, measure it, and return the values of a :class:`Plan`."""
    start_time = time.perf_counter()
    reset_peak_memory()
    libraries = peak_memory_bytes()
    # neither stops nor saves amid the steps
    training_options = config.training.model_copy(update={"max_time": None})
    checkpoint = config.checkpoint.model_copy(update={"every_steps": None, "every_minutes": None})
    update = {"out": folder, "training": training_options, "checkpoint": checkpoint}
    config = config.model_copy(update=update)
    with (
        Processes.join(config.device, config.distributed) as processes,
        new_run(processes, config, None, quiet=True, start_time=start_time) as setup,
        open_run(setup, None) as training,
    ):
        return _measure(training, libraries)


def _measure(training: TrainingRun, libraries: int) -> dict[str, Any]:
    setup, trainer = training.setup, training.trainer
    config, device = trainer.config, trainer.device
    parts = MemoryParts()
    trainer.control.start()
    trainer.recovery.disable()
    trainer.compile()
    setup.model.train()
    seconds = {"start": time.perf_counter() - setup.start_time}
    stages = {"start": _peak_since_last(device)}
    counted = {
        "libraries": libraries if device.type == "cpu" else 0,
        "data": parts.count(setup.dataset) if device.type == "cpu" else 0,
        "parameters": parts.count(list(setup.model.parameters())),
        "graph and sampler": parts.count([setup.model, setup.phases]),
        "evaluation data": parts.count(setup.tasks),
    }
    measured, save_seconds = _measure_epochs(training)
    stages["training"] = _peak_since_last(device)
    grads = [p.grad for stepper in trainer.steppers for p in stepper.optimizer.parameters]
    counted["gradients"] = parts.count(grads)
    counted["optimizer moments"] = parts.count([s.optimizer for s in trainer.steppers])
    # the first epoch computes graphs and constants, and allocates
    seconds["epoch"] = sum(median(phase.epochs[1:] or phase.epochs) for phase in measured)
    valid, test = setup.tasks
    average = trainer.state.average
    with nullcontext() if average is None else average.applied():
        seconds["evaluation"] = _evaluation_seconds(training, valid)
    stages["evaluation"] = _peak_since_last(device)
    seconds["checkpoint"] = save_seconds
    saved = _folder_bytes(setup.folder.checkpoints)
    trainer.finish()
    training.load_best()
    stages["end"] = _peak_since_last(device)
    # last, because these steps would change what the stages measure
    counted["activations"] = max(
        (_activations(trainer, number, parts) for number in range(len(measured))), default=0
    )
    unattributed = stages["training"] - sum(counted.values())
    counted["temporaries and allocator"] = max(0, unattributed)
    epochs = trainer.epochs
    pause = epochs_between_saves(config.checkpoint.every, save_seconds, seconds["epoch"])
    saves, evaluations = (-(-epochs // every) for every in (pause, config.evaluation.every))
    tested = 0.0 if test is None else len(test.queries) / max(1, len(valid.queries))
    seconds["total"] = (
        seconds["start"]
        + epochs * seconds["epoch"]
        + (evaluations + 1 + tested) * seconds["evaluation"]
        + (saves + 2) * seconds["checkpoint"]  # and best and final
    )
    more = max(0, min(config.checkpoint.keep, saves) - 1)  # than the one that was saved here
    return {
        "model": config.model.name,
        "data": setup.dataset.name,
        "device": str(device),
        "settings": {name: getattr(config.training, name) for name in SETTINGS},
        "memory": counted,
        "stages": stages,
        "peak_memory_bytes": max(stages.values()),
        "seconds": seconds,
        "epochs": epochs,
        "steps": {
            "epoch": trainer.steps_per_epoch,
            "measured": sum(phase.count * len(phase.epochs) for phase in measured),
        },
        "disk_bytes": _folder_bytes(setup.folder.path) + more * saved,
    }


class _StepTimes(Progress):
    """Records the time of each step."""

    def __init__(self) -> None:
        super().__init__(0, quiet=True)
        self.times = [time.perf_counter()]

    def advance(self, loss: float | None = None) -> None:
        self.times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in pairwise(self.times)]


def _measure_epochs(training: TrainingRun) -> tuple[list[PhaseCost], float]:
    """Take the last steps of each phase in several epochs; also the seconds of a checkpoint.

    As in a run, an epoch ends with an evaluation, here of one tile, and the first one with a
    checkpoint. The memory that the allocator keeps grows with batches of other sizes, so one epoch
    is too few.
    """
    trainer, (valid, _) = training.trainer, training.setup.tasks
    costs = [_steps_to_take(trainer, number) for number in range(len(trainer.steppers))]
    start_time, save_seconds = time.perf_counter(), 0.0
    for epoch in range(max(1, min(trainer.epochs, _EPOCHS))):
        if epoch > 1 and time.perf_counter() - start_time > _LIMIT:
            break
        trainer.state.position.epoch = epoch
        for number, cost in enumerate(costs):
            _take_epoch(trainer, number, cost)
            _take_largest(trainer, number)
        if len(valid.queries):
            _evaluate(training, valid, 1)
        if not epoch:
            started = time.perf_counter()
            trainer.save()
            save_seconds = time.perf_counter() - started
    return costs, save_seconds


def _steps_to_take(trainer: Trainer, number: int) -> PhaseCost:
    """How many steps of a phase to take: all of a short epoch, else those that fit the time."""
    phase = trainer.steppers[number].phase
    if phase.steps() <= _MIN_STEPS + 1:
        return PhaseCost(phase.steps())
    trainer.state.position.phase = number
    phase.start_epoch(trainer.config.seed, 0)
    _take(trainer, number, 1)  # computes graphs and constants
    (trial,) = _take(trainer, number, 1)
    return PhaseCost(min(phase.steps(), _how_many(trial) + 1))


def _activations(trainer: Trainer, number: int, parts: MemoryParts) -> int:
    """The bytes that a step of a phase saves for its backward pass, beside the counted parts."""
    position = trainer.state.position
    position.phase = number
    trainer.steppers[number].phase.start_epoch(trainer.config.seed, position.epoch)
    with SavedActivations(parts) as saved:
        _take(trainer, number, 1)
    return saved.peak


def _take_epoch(trainer: Trainer, number: int, cost: PhaseCost) -> None:
    """Take the last steps of the phase's epoch, and record the seconds of all of them."""
    position, phase, seed = (
        trainer.state.position,
        trainer.steppers[number].phase,
        trainer.config.seed,
    )
    position.phase = number
    start_time = time.perf_counter()
    phase.start_epoch(seed, position.epoch)
    seconds = time.perf_counter() - start_time
    *whole, last = _take(trainer, number, cost.count)  # the last batch may be smaller
    start_time = time.perf_counter()
    phase.end_epoch(seed, position.epoch)
    seconds += time.perf_counter() - start_time
    each = sum(whole) / len(whole) if whole else last
    cost.epochs.append(seconds + each * (phase.steps() - 1) + last)


def _take_largest(trainer: Trainer, number: int) -> None:
    """Take the step of the phase's epoch that needs most memory, if there is one."""
    stepper, seed, epoch = (
        trainer.steppers[number],
        trainer.config.seed,
        trainer.state.position.epoch,
    )
    index = stepper.phase.largest_step(seed, epoch)
    if index is not None:
        stepper(stepper.plan(seed, epoch, index), trainer.config.training.lr)


def _take(trainer: Trainer, number: int, count: int) -> list[float]:
    """Take the last ``count`` steps of the phase's epoch; the seconds of each.

    On a device that computes after the call returns, all get the mean.
    """
    stepper = trainer.steppers[number]
    trainer.state.position.index = stepper.phase.steps() - count
    trainer.progress = clock = _StepTimes()
    start_time = time.perf_counter()
    trainer.train_phase(stepper)  # synchronizes at its end
    elapsed = time.perf_counter() - start_time
    return clock.seconds() if trainer.device.type == "cpu" else [elapsed / count] * count


def _how_many(seconds: float) -> int:
    """How often to repeat what takes this long."""
    return int(min(_MAX_STEPS, max(_MIN_STEPS, _SECONDS / max(seconds, 1e-6))))


def _evaluation_seconds(training: TrainingRun, task: AnyTask) -> float:
    """Seconds of a whole evaluation, from the tile of the longest queries and some others."""
    tiles = _tiles(training, task)
    if not tiles:
        return 0.0
    _evaluate(training, task, 1)
    one, _ = _evaluate(training, task, 1)
    if tiles == 1:
        return one
    several, count = _evaluate(training, task, max(2, _how_many(one)))
    if count == tiles:
        return several
    return one + (tiles - 1) * max(0.0, several - one) / (count - 1)


def _tiles(training: TrainingRun, task: AnyTask) -> int:
    queries = len(task.queries)
    return -(
        -queries // TileShape.of(training.setup.processes.device, queries, task.item_count).rows
    )


def _evaluate(training: TrainingRun, task: AnyTask, count: int) -> tuple[float, int]:
    """Seconds of an evaluation of at least ``count`` tiles, the last included; their number."""
    setup, tiles = training.setup, _tiles(training, task)
    every = max(1, tiles // count)
    first = (tiles - 1) % every
    start_time = time.perf_counter()
    evaluate(
        setup.model,
        task,
        setup.resolved.config.evaluation.metrics,
        device=setup.processes.device,
        process_rank=first,
        world_size=every,
    )
    return time.perf_counter() - start_time, len(range(first, tiles, every))


def _peak_since_last(device: torch.device) -> int:
    peak = peak_bytes(device)
    reset_peak(device)
    return peak


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
