"""``hasten evaluate``: metrics of an existing run, by its own protocol or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import typer

from hasten.cli import options, output
from hasten.cli.options import option
from hasten.errors import UsageError


def evaluate(
    context: typer.Context,
    run: Path = options.RUN,
    checkpoint: str = options.CHECKPOINT,
    metrics: str | None = options.METRICS,
    topk: str | None = options.TOPK,
    like: str | None = options.LIKE,
    sets: list[str] | None = options.SETS,
    device: str | None = options.DEVICE,
    devices: str | None = options.DEVICES,
    part: str | None = options.PART,
    by: str | None = option(
        "WHAT", "Metrics by popularity, history, relation, direction or leakage."
    ),
    beyond: int | None = option(
        "K",
        "Also coverage, novelty, diversity, popularity and serendipity of lists of K items.",
        None,
        "--beyond-accuracy",
        min=1,
    ),
    out: Path | None = option("FILE", "Write the table of --by to a .parquet, .csv or .json file."),
    format: str | None = options.OUT_FORMAT,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Evaluate a checkpoint of RUN on its validation and test parts.

    A run with evaluation.test=false is evaluated on test only with --part test.
    Use another protocol with --like recbole, or with --set
    evaluation.mask_history=true or evaluation.candidates=uni100.

    hasten evaluate runs/mine --part test --by popularity
    """
    if by is None and out is not None:
        raise UsageError("--out writes the table of --by: give --by, such as --by popularity")
    options.one_of("part", part, ("valid", "test"))
    options.prepare_process(several=True)
    options.check_export(out, format)
    count = options.whole_number("devices", devices)
    options.maybe_start_processes(context, count or 1, count is not None)
    from hasten.config_loading.build import parse_changes  # noqa: PLC0415 - only when needed

    configured = _configured_metrics(run, like) if (metrics is None) != (topk is None) else None
    flags = options.configuration_flags(metrics=metrics, topk=topk, like=like)
    changes = parse_changes(sets or [], flags, configured)
    from hasten import loaded_run  # noqa: PLC0415 - brings torch

    result = loaded_run.evaluate(
        run, changes=changes, checkpoint=checkpoint, device=device, by=by, beyond=beyond,
        part=cast(Any, part),
    )  # fmt: skip
    groups = result.pop("groups", None)
    if groups is not None and out is not None and output.is_rank0():
        from hasten.inference import export  # noqa: PLC0415 - imports pyarrow

        export.write_table(groups, out, format)
        output.say(f"{groups.num_rows:,} rows in {out}")
    if json:
        rows = {} if groups is None else output.rows("groups", groups, out)
        output.write_json(result | rows)
        return
    output.say(f"{result['model']} on {result['data']}, checkpoint {result['checkpoint']}")
    output.show_metrics(result["valid"], result["test"], result["protocol"])
    for name, figures in result.get("beyond_accuracy", {}).items():
        output.say(f"{name:<11} " + "  ".join(f"{key} {x:.4f}" for key, x in figures.items()))
    if groups is not None and out is None and output.is_rank0():
        shown = "test" if result["test"] else "valid"
        of_part = [row for row in groups.to_pylist() if row["part"] == shown]
        output.show_rows(of_part, groups.column_names)


def _configured_metrics(run: Path, like: str | None) -> tuple[str, ...] | None:
    """The metrics of the protocol or the run: they complete --metrics or --topk given alone."""
    from hasten.evaluation.other_libraries import PEERS  # noqa: PLC0415 - only when needed

    if like in PEERS:
        return PEERS[like].metrics
    from hasten.config_loading.build import load_config  # noqa: PLC0415 - only when needed

    file = run / "config.yaml"
    return load_config(file).evaluation.metrics if file.is_file() else None
