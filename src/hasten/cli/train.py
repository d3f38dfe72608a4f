"""``hasten train``: build the configuration, train, print the result."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from hasten.cli import options, output
from hasten.cli.options import EVALUATION, PROCESSES, SPEED, TRAINING, argument, option, switch
from hasten.errors import UsageError
from hasten.registry import BUILT_IN, ModelEntry, load_model, model_entries

if TYPE_CHECKING:
    from hasten.models.interface import Model


def _summaries(entries: Sequence[ModelEntry]) -> str:
    return "; ".join(f"{entry.name}: {entry.summary}" for entry in entries) + "."


_HELP_COLUMNS = ("--set", "default", "meaning")


class TrainCommand(options.Command):
    """The commands ``train`` and ``plan``: ``--help`` after a model also lists its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        (model,) = (parameter for parameter in self.params if parameter.name == "model")
        # not at import: model_entries() reads the metadata of all installed packages, which is slow
        cast(Any, model).help = _summaries(model_entries())
        super().format_help(ctx, formatter)
        if (model_class := _named_model(ctx)) is None:
            return
        from hasten.config_loading.keys import choices  # noqa: PLC0415 - brings pydantic

        rows = []
        for key, field in model_class.Options.model_fields.items():
            default = field.get_default(call_default_factory=True)
            meaning = (field.description, ", ".join(choices(field.annotation)))
            row = (f"model.{key}=", "none" if default is None else str(default),
                   "; ".join(text for text in meaning if text))  # fmt: skip
            rows.append(dict(zip(_HELP_COLUMNS, row, strict=True)))
        sys.stdout.write(f"\nOptions of {model_class.name}:\n")
        output.show_rows(
            rows[1:], _HELP_COLUMNS, longest=300
        )  # the first field is `name`: no option

    def hint(self, option: str, context: Any) -> str:
        """The end of the error message for an unknown option: which option was probably meant.

        The user may have typed the last part of a configuration key (``lr`` of ``training.lr``), or
        another library's name for it.
        """
        from hasten.config_loading.build import as_option  # noqa: PLC0415 - brings pydantic
        from hasten.config_loading.keys import known_keys, matching_key  # noqa: PLC0415 - as above
        from hasten.config_loading.spellings import ADVICE, OTHER_NAMES, normalized_name  # noqa: PLC0415
        from hasten.registry import data_options_of  # noqa: PLC0415 - as above

        if (model := _named_model(context)) is None:
            keys = [*known_keys(None), *OTHER_NAMES]
        else:
            # --topk is a flag without a key of this name
            keys = ["topk", *known_keys(model.Options, data_options_of(model))]
        key = matching_key(option, keys)
        if advice := ADVICE.get(normalized_name(option)):
            return f"; {advice}"
        if key == "data.path":
            return "; the data are the argument after MODEL"
        return (
            super().hint(option, context) if key is None else f"; did you mean {as_option(key)!r}?"
        )


def _named_model(context: Any) -> type[Model] | None:
    """The class of the first model that the arguments name, or None."""
    names = {entry.name for entry in model_entries()}
    arguments = context.find_root().obj[1:]  # of the command line, without the command
    name = next((word for word in arguments if word in names), None)
    return None if name is None else load_model(name)


def train(
    context: typer.Context,
    model: str | None = argument("MODEL", _summaries(BUILT_IN), complete=options.model_names),
    data: str | None = argument(
        "DATA", "File, folder or registered name; default: a built-in sample."
    ),
    config: Path | None = option("FILE", "YAML file; a run's config.yaml repeats that run."),
    recipe: str | None = option(
        "NAME", "Measured settings: best, paper, ... (hasten recipes list), or a YAML file."
    ),
    sets: list[str] | None = options.SETS,
    format: str | None = options.FORMAT,
    out: Path | None = option("DIR", "Run folder; default: runs/<date>-<model>-<data>-<n>."),
    resume: str | None = option(
        "auto", "Resume the run in --out if there is one, else start a new run."
    ),
    init_from: str | None = option("RUN", "Start from the weights of a run or checkpoint."),
    seed: str | None = option("N", "Seed of everything random."),
    epochs: str | None = option(
        "N", "Maximum number of epochs; default: by the size of the data.", TRAINING
    ),
    batch_size: str | None = option(
        "N",
        "Examples (sequences: users) per optimizer step, over all processes; default: by model.",
        TRAINING,
    ),
    lr: str | None = option("X", "Learning rate; default: by model.", TRAINING),
    warmup_steps: str | None = option("N", "Steps of linear learning-rate warmup.", TRAINING),
    clip_norm: str | None = option("X", "Gradient clipping: maximum norm.", TRAINING),
    max_time: str | None = option("TIME", "Stop and save after this time: 90s, 30m, 2h.", TRAINING),
    precision: str | None = option(
        "NAME", "Mixed precision: fp32, bf16, fp16, or auto: bf16 where it is fast.", SPEED
    ),
    accumulate: str | None = option("N", "Gradient accumulation: micro-batches per step.", SPEED),
    compile: str | None = option(
        "MODE", "torch.compile: off, default, reduce-overhead, or auto: if faster.", SPEED
    ),
    recompute: bool | None = switch(
        "--recompute/--no-recompute",
        "Activation checkpointing: less memory, more time.",
        SPEED,
        default=None,
    ),
    device: str | None = options.DEVICE,
    threads: str | None = options.THREADS,
    deterministic: bool | None = switch(
        "--deterministic/--no-deterministic",
        "Bit-exact results on CUDA too; slower.",
        SPEED,
        default=None,
    ),
    metrics: str | None = options.METRICS,
    topk: str | None = options.TOPK,
    like: str | None = options.LIKE,
    eval_every: str | None = option(
        "N", "Epochs between evaluations; default: by the size of the data.", EVALUATION
    ),
    patience: str | None = option(
        "N", 'Stop after N evaluations without improvement; "N epochs": after N epochs.', EVALUATION
    ),
    refit: bool = switch(
        "--refit",
        "Afterwards retrain on train + validation for the best number of epochs, in OUT/refit.",
        TRAINING,
    ),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,
    quiet: bool = options.QUIET,
    devices: str | None = options.DEVICES,
    backend: str | None = options.BACKEND,
    master_port: str | None = options.MASTER_PORT,
    lr_scaling: str | None = option(
        "RULE", "Scale lr by the number of processes: none, sqrt or linear.", PROCESSES
    ),
    memory_budget: str | None = option(
        "SIZE",
        "Choose settings whose predicted peak memory fits (such as 10GB), and keep to it.",
        SPEED,
    ),
) -> None:
    """Train MODEL on DATA into a run folder.

    Without DATA the model trains on its built-in sample.
    --set accepts every configuration key: --set training.weight_decay=0.1
    hasten train MODEL --help also lists the options of the model.

    hasten train sasrec events.csv --epochs 20 --out runs/mine

    hasten train conve triples.tsv --set model.width=200 training.weight_decay=0.1
    """
    flags = options.configuration_flags(**locals())
    options.prepare_process(several=True)  # it may be one of several processes
    if resume not in (None, "auto"):
        raise UsageError(
            f"--resume {resume}: only --resume auto is supported; "
            "use hasten resume RUN to resume a run"
        )
    from hasten.config_loading.build import build_config  # noqa: PLC0415 - only when it is needed

    configuration = build_config(model, data, config, sets or [], flags)
    if resume and configuration.out is None:
        raise UsageError("--resume auto needs --out DIR: the run folder to resume or create")
    # --like LIBRARY evaluates as that library does: say what differs
    if configuration.evaluation.like is not None and not quiet:
        from hasten.config_loading.other_libraries import peer_notice  # noqa: PLC0415 - only when needed

        output.say(peer_notice(configuration))
    # with --devices N: starts N processes that run this command, waits for them, and exits
    options.maybe_start_processes(
        context, configuration.devices, devices is not None, configuration.distributed.master_port
    )
    from hasten import run  # noqa: PLC0415 - brings torch

    plan = None
    if memory_budget is not None:
        from hasten.config_loading.units import parse_size  # noqa: PLC0415
        from hasten.planning.budget import fit_run  # noqa: PLC0415 - only when it is needed

        budget = parse_size("--memory-budget", memory_budget)
        configuration, plan = fit_run(configuration, budget, resume is not None)
    summary = run.train(
        configuration, quiet=quiet, resume_auto=resume == "auto", refit=refit, plan=plan
    )
    if json:
        output.write_json(summary.to_json())
    elif not quiet:
        output.print_summary(summary)
