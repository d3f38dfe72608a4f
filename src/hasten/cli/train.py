"""``hasten train``: flags and files into a configuration, a run, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli import output, result
from hasten.cli.options import (
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
    given,
    prepare_process,
    refuse_unavailable,
    seconds,
    start_if_several,
)
from hasten.errors import UsageError
from hasten.registry import BUILT_IN

_MODELS = "; ".join(f"{entry.name}: {entry.summary}" for entry in BUILT_IN)
_TRAINING, _SPEED, _JUDGING = "Training", "Speed and memory", "Evaluation"


def train(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help=f"{_MODELS}; or one of another package."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="A file, a folder or a name; none: a built-in sample."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML; a run's config.yaml repeats that run."),
    ] = None,
    sets: SetOption = None,
    format: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the data, where not recognised.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder; none: runs/<date>-<model>-<data>-<n>."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="auto", help="Go on if --out holds the run, else start it."),
    ] = None,
    init_from: Annotated[
        str | None, typer.Option(metavar="RUN", help="Start from the weights of a run.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="N", help="Everything random follows from it.")
    ] = None,
    epochs: Annotated[
        str | None, typer.Option(metavar="N", help="At most so many.", rich_help_panel=_TRAINING)
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar="N", help="Examples a step.", rich_help_panel=_TRAINING)
    ] = None,
    lr: Annotated[
        str | None, typer.Option(metavar="X", help="Learning rate.", rich_help_panel=_TRAINING)
    ] = None,
    warmup_steps: Annotated[
        str | None,
        typer.Option(metavar="N", help="Steps of linear warm-up.", rich_help_panel=_TRAINING),
    ] = None,
    clip_norm: Annotated[
        str | None,
        typer.Option(metavar="X", help="Clip the gradient's norm.", rich_help_panel=_TRAINING),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Stop and save after 90s, 30m, 2h.", rich_help_panel=_TRAINING
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="fp32, bf16, fp16, or auto: bf16 where it is fast.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    accumulate: Annotated[
        str | None,
        typer.Option(metavar="N", help="Micro-batches a step.", rich_help_panel=_SPEED),
    ] = None,
    compile: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="off, default, reduce-overhead, or auto: if it is measured to be faster.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="Activation checkpointing: less memory, more time.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    device: DeviceOption = None,
    threads: Annotated[
        str | None, typer.Option(metavar="N", help="CPU threads.", rich_help_panel=_SPEED)
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic",
            help="Bit-exact on CUDA too, at a cost.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    metrics: MetricsOption = None,
    topk: TopkOption = None,
    eval_every: Annotated[
        str | None,
        typer.Option(metavar="N", help="Epochs between evaluations.", rich_help_panel=_JUDGING),
    ] = None,
    patience: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help='"5 evaluations" or "20 epochs" without improvement end the run.',
            rich_help_panel=_JUDGING,
        ),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit",
            help="Then train anew on train and validation, for the selected epochs, in OUT/refit.",
            rich_help_panel=_TRAINING,
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
        typer.Option(
            metavar="RULE",
            help="none, sqrt or linear: by the number of processes.",
            rich_help_panel="Several processes",
        ),
    ] = None,
    memory_budget: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train MODEL on DATA into a run folder.

    Without DATA the model trains on its built-in sample.
    Every key of the configuration can be set: --set training.weight_decay=0.1
    """
    prepare_process(several=True)
    refuse_unavailable(memory_budget)
    if resume not in (None, "auto"):
        raise UsageError(
            f"--resume {resume}: only --resume auto is known here; "
            "to go on with a run: hasten resume RUN"
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
        raise UsageError("--resume auto needs --out DIR: the folder to go on in or to start")
    start_if_several(
        context, configuration.devices, devices is not None, configuration.distributed.master_port
    )
    from hasten import run  # noqa: PLC0415 - brings torch

    summary = run.train(configuration, quiet=quiet, resume_auto=resume == "auto", refit=refit)
    if json:
        output.write_json(summary.to_json())
    elif not quiet:
        result.announce(summary)
