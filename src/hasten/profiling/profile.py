"""Measure training steps and an evaluation batch of a configuration, without a run folder."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any

import torch

from hasten.build import (
    build_model,
    evaluate_task,
    load_data,
    ranking_tasks,
    with_builtin_sample,
)
from hasten.config import RunConfig
from hasten.config_loading.data_defaults import with_data_defaults
from hasten.data.tables import AnyDataset
from hasten.distributed.device import prepare_torch
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import require_same_data
from hasten.errors import UsageError
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.query_tiles import TileShape, make_tiles
from hasten.initial_weights import apply_initial_weights, initial_checkpoint
from hasten.models.interface import Model
from hasten.models.supports import Supports
from hasten.profiling.advice import Circumstances, advise
from hasten.profiling.timed_step import PARTS, Clock, TimedStep
from hasten.runs.allocator import configure_process
from hasten.runs.environment import usable_cpus
from hasten.training.compile import compile_phases, compile_step
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision, refuse_emulated_fp16, resolve_precision
from hasten.training.resolve_config import resolve_config
from hasten.training.schedule import Schedule

_WARM_UP, _MIN_STEPS, _MAX_STEPS = 2, 3, 20
#: seconds of measured steps for each phase, about
_SECONDS = 3.0


def profile_step(config: RunConfig, table: object | None = None) -> dict[str, Any]:
    """Where the time of a step and of an epoch goes with this configuration, on this machine.

    Takes up to 20 steps of each phase and ranks one batch of the validation part. Times are those
    of the first process. table: replaces ``data.path``.

    Returns the JSON object of ``hasten doctor --step``.

    Raises:
        UsageError: the model has no steps.
    """
    if table is None:
        config = with_builtin_sample(config)
    configure_process()
    with Processes.join(config.device, config.distributed) as processes:
        device = processes.device
        refuse_emulated_fp16(config.training, device)
        dataset = processes.run_on_all_ranks("reading the data", lambda: load_data(config, table))
        require_same_data(processes, dataset)
        config, _ = with_data_defaults(config, dataset, processes.world)
        config = resolve_config(config, processes).config
        options = config.training
        prepare_torch(config.threads, options.deterministic, device, processes.launch)
        weights = initial_checkpoint(processes, config)
        model = processes.run_on_all_ranks(
            "building the model", lambda: build_model(config, dataset, device, for_training=True)
        )
        apply_initial_weights(model, weights, dataset)
        precision = Precision(resolve_precision(options.precision, device), device)
        steppers = _steppers(model, dataset, config, precision, processes)
        compiled = []
        if options.compile != "off":
            compile_one = partial(compile_step, seed=config.seed, epochs=options.epochs)
            compiled = compile_phases(steppers, (), options.compile, processes, compile_one)
        model.train()
        schedule = Schedule.of(options, sum(stepper.phase.steps() for stepper in steppers))
        measured = [_measure(stepper, config.seed, schedule, processes) for stepper in steppers]
        valid, _ = ranking_tasks(dataset, config)
        evaluation = _evaluate(model, valid, config, processes)
        epoch = _epoch(measured, evaluation)
        bottleneck = max(epoch["shares"], key=lambda part: epoch["shares"][part])
        circumstances = Circumstances(
            config=config,
            device=device.type,
            processes=processes.world,
            backend=processes.backend,
            precision=precision.name,
            threads=torch.get_num_threads(),
            cpus=usable_cpus() or 1,
            supports=Supports.of(type(model)),
            train_seconds=epoch["train_seconds"],
            evaluation_seconds=evaluation["seconds"] if evaluation else 0.0,
        )
        return {
            "model": config.model.name,
            "data": dataset.name,
            "device": str(device),
            "devices": processes.world,
            "threads": circumstances.threads,
            "precision": precision.name,
            "batch_size": options.batch_size,
            "compile": [report.to_json() for report in compiled] or "off",
            "phases": measured,
            "evaluation": evaluation,
            "epoch": epoch,
            "bottleneck": bottleneck,
            "advice": [asdict(each) for each in advise(bottleneck, circumstances)],
        }


def _steppers(
    model: Model,
    dataset: AnyDataset,
    config: RunConfig,
    precision: Precision,
    processes: Processes,
) -> list[TimedStep]:
    """A measured step for each phase. Raises UsageError if there is none."""
    phases = model.phases(dataset, config.training)
    if not phases:
        raise UsageError(f"{config.model.name} is fitted in one pass: it has no steps")
    shard = DataParallelRank(processes.rank, processes.world)
    return [
        TimedStep(phase, index, config.training, precision, shard, processes.device, processes)
        for index, phase in enumerate(phases)
    ]


def _measure(
    stepper: TimedStep, seed: int, schedule: Schedule, processes: Processes
) -> dict[str, Any]:
    """Milliseconds of a mean step of a phase by part, and of what happens between epochs."""
    phase, clock = stepper.phase, Clock(stepper.device)
    with clock.measure("begin"):
        phase.start_epoch(seed, 0)

    def steps(first: int, number: int) -> None:
        for step in range(first, first + number):
            stepper.run(seed, step % phase.steps(), schedule.at(step))

    steps(0, 1)
    stepper.take()
    steps(1, _WARM_UP - 1)
    # the same number on all processes
    slowest = max(processes.gather(sum(stepper.take().values())))
    number = min(_MAX_STEPS, max(_MIN_STEPS, round(_SECONDS / max(slowest, 1e-6))))
    steps(_WARM_UP, number)
    seconds_by_part = stepper.take()
    with clock.measure("end"):
        phase.end_epoch(seed, 0)
    return {
        "name": phase.name,
        "steps_per_epoch": phase.steps(),
        "measured_steps": number,
        "milliseconds": {part: seconds_by_part[part] / number * 1e3 for part in PARTS},
        "between_epochs_milliseconds": sum(clock.seconds.values()) * 1e3,
    }


def _evaluate(
    model: Model, task: AnyTask, config: RunConfig, processes: Processes
) -> dict[str, Any] | None:
    """The times of an evaluation; None without a validation part."""
    if not len(task.queries):
        return None
    rows = TileShape.of(processes.device, len(task.queries), task.item_count).rows
    tiles = len(make_tiles(task.queries.lengths, rows)[processes.rank :: processes.world])

    def seconds(limit: int) -> float:
        """Of an evaluation that ends after this number of tiles."""
        done = count()
        return evaluate_task(model, task, config, processes, lambda: next(done) >= limit).seconds

    seconds(1)  # warm up
    encoding = seconds(0)
    tile = max(0.0, seconds(1) - encoding)
    return {
        "batches": tiles,
        "every_epochs": config.evaluation.every,
        "start_milliseconds": encoding * 1e3,
        "batch_milliseconds": tile * 1e3,
        "seconds": encoding + tile * tiles,
    }


def _epoch(phases: list[dict[str, Any]], evaluation: dict[str, Any] | None) -> dict[str, Any]:
    """The predicted seconds of an epoch, and the share of each part in them."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"between epochs": 0.0, "evaluation": 0.0}
    for phase in phases:
        for part, milliseconds in phase["milliseconds"].items():
            seconds[part] += milliseconds / 1e3 * phase["steps_per_epoch"]
        seconds["between epochs"] += phase["between_epochs_milliseconds"] / 1e3
    train = sum(seconds.values())
    if evaluation is not None:
        seconds["evaluation"] = evaluation["seconds"] / evaluation["every_epochs"]
    total = sum(seconds.values())
    shares = {part: value / total for part, value in seconds.items()}
    return {"seconds": total, "train_seconds": train, "shares": shares}
