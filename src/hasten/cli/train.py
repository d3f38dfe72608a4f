"""``hasten train``: build the configuration, train, print the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from hasten.cli import output, result
from hasten.cli.options import (
    EVALUATION,
    PROCESSES,
    SPEED,
    TRAINING,
    BackendOption,
    DebugOption,
    DeviceOption,
    DevicesOption,
    JsonOption,
    MasterPortOption,
    MetricsOption,
    QuietOption,
    SetOption,
    TopkOption,
    flag,
    given,
    prepare_process,
    refuse_unavailable,
    seconds,
    start_if_several,
)
from hasten.errors import UsageError
from hasten.registry import BUILT_IN, ModelEntry, model_entries


def _described(entries: Sequence[ModelEntry]) -> str:
    return "; ".join(f"{entry.name}: {entry.summary}" for entry in entries) + "."


class TrainCommand(TyperCommand):
    """``train``, whose help also lists the models of installed packages."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        (model,) = (parameter for parameter in self.params if parameter.name == "model")
        cast(Any, model).help = _described(model_entries())  # reads the installed packages: slow
        super().format_help(ctx, formatter)


def train(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=_described(BUILT_IN))] = None,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="File, folder or registered name; default: a built-in sample."
        ),
    ] = None,
    config: Annotated[
        Path | None, flag("FILE", "YAML file; a run's config.yaml repeats that run.")
    ] = None,
    sets: SetOption = None,
    format: Annotated[
        str | None, flag("NAME", "Format of the data, if it is not recognized.")
    ] = None,
    out: Annotated[
        Path | None, flag("DIR", "Run folder; default: runs/<date>-<model>-<data>-<n>.")
    ] = None,
    resume: Annotated[
        str | None, flag("auto", "Resume the run in --out if there is one, else start it.")
    ] = None,
    init_from: Annotated[
        str | None, flag("RUN", "Start from the weights of a run or checkpoint.")
    ] = None,
    seed: Annotated[str | None, flag("N", "Seed of everything random.")] = None,
    epochs: Annotated[str | None, flag("N", "Maximum number of epochs.", TRAINING)] = None,
    batch_size: Annotated[
        str | None, flag("N", "Examples per optimizer step, over all processes.", TRAINING)
    ] = None,
    lr: Annotated[str | None, flag("X", "Learning rate.", TRAINING)] = None,
    warmup_steps: Annotated[
        str | None, flag("N", "Steps of linear learning-rate warmup.", TRAINING)
    ] = None,
    clip_norm: Annotated[
        str | None, flag("X", "Gradient clipping: maximum norm.", TRAINING)
    ] = None,
    max_time: Annotated[
        str | None, flag("TIME", "Stop and save after this time: 90s, 30m, 2h.", TRAINING)
    ] = None,
    precision: Annotated[
        str | None,
        flag("NAME", "Mixed precision: fp32, bf16, fp16, or auto: bf16 where it is fast.", SPEED),
    ] = None,
    accumulate: Annotated[
        str | None, flag("N", "Gradient accumulation: micro-batches per step.", SPEED)
    ] = None,
    compile: Annotated[
        str | None,
        flag("MODE", "torch.compile: off, default, reduce-overhead, or auto: if faster.", SPEED),
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="Activation checkpointing: less memory, more time.",
            rich_help_panel=SPEED,
        ),
    ] = None,
    device: DeviceOption = None,
    threads: Annotated[str | None, flag("N", "CPU threads per process.", SPEED)] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic",
            help="Bit-exact results on CUDA too; slower.",
            rich_help_panel=SPEED,
        ),
    ] = None,
    metrics: MetricsOption = None,
    topk: TopkOption = None,
    eval_every: Annotated[str | None, flag("N", "Epochs between evaluations.", EVALUATION)] = None,
    patience: Annotated[
        str | None,
        flag(
            "N",
            'Early stopping: "5 evaluations" or "20 epochs" without improvement.',
            EVALUATION,
        ),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit",
            help="Afterwards retrain on train + validation for the best number of epochs, in "
            "OUT/refit.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
    devices: DevicesOption = None,
    backend: BackendOption = None,
    master_port: MasterPortOption = None,
    lr_scaling: Annotated[
        str | None,
        flag("RULE", "Scale lr by the number of processes: none, sqrt or linear.", PROCESSES),
    ] = None,
    memory_budget: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train MODEL on DATA into a run folder.

    Without DATA the model trains on its built-in sample.
    --set accepts every configuration key: --set training.weight_decay=0.1
    """
    prepare_process(several=True)
    refuse_unavailable(memory_budget)
    if resume not in (None, "auto"):
        raise UsageError(
            f"--resume {resume}: only --resume auto is supported; "
            "use hasten resume RUN to resume a run"
        )
    from hasten.configuration.build import build_config  # noqa: PLC0415 - only when it is needed

    flags = given(
        seed=seed,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        warmup_steps=warmup_steps,
        clip_norm=clip_norm,
        max_time=seconds(max_time),
        precision=precision,
        accumulate=accumulate,
        compile=compile,
        recompute=recompute,
        device=device,
        threads=threads,
        deterministic=deterministic,
        metrics=metrics,
        topk=topk,
        eval_every=eval_every,
        patience=patience,
        format=format,
        out=out,
        init_from=init_from,
        devices=devices,
        backend=backend,
        master_port=master_port,
        lr_scaling=lr_scaling,
    )
    configuration = build_config(model, data, config, sets or [], flags)
    if resume and configuration.out is None:
        raise UsageError("--resume auto needs --out DIR: the run folder to resume or create")
    start_if_several(
        context, configuration.devices, devices is not None, configuration.distributed.master_port
    )
    from hasten import run  # noqa: PLC0415 - brings torch

    summary = run.train(configuration, quiet=quiet, resume_auto=resume == "auto", refit=refit)
    if json:
        output.write_json(summary.to_json())
    elif not quiet:
        result.announce(summary)
