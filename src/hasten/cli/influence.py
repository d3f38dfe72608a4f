"""``hasten influence``: the training examples that support or oppose a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from hasten.cli import options, output
from hasten.cli.options import SPEED, option, switch
from hasten.config_loading.units import parse_size
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.influence.result import Influences

_COLUMNS = (
    "test", "kind", "rank", "influence", "head", "relation", "tail", "head_name", "tail_name",
    "user_id", "item_id", "position", "item_name",
)  # fmt: skip
_SHOWN = 20
#: of several tests, as many and as many rows of each are printed
_TESTS, _ROWS = 10, 3
_APPROXIMATE = "Approximations"


def influence(
    context: typer.Context,
    run: Path = options.RUN,
    test: Path | None = option("FILE", "Explain the triples or user_id[,item_id] of a file."),
    triple: list[str] | None = option("h,r,t", "Explain a triple; repeatable."),
    event: list[str] | None = option("USER,ITEM", "Explain an item for a user; repeatable."),
    part: str | None = option("PART", "Explain a part of the data: valid or test."),
    limit: int | None = option("N", "Explain at most N examples.", min=1),
    itself: bool = switch("--self", "Self-influence of training examples; finds mislabeled ones."),
    topk: int | None = option(
        None, "Proponents and opponents per test (20); rows of --self (all).", min=1
    ),
    loss: str | None = option("NAME", "positive: of the answer alone; training: as trained."),
    layers: str | None = option(
        "NAME", "all parameters, the last layer only, or (conve) the last 1, 2 or 3 layers."
    ),
    checkpoints: str = option("NAMES", "all, best, final, last, or epochs: 5,10.", default="best"),
    sample_rate: float = option(
        "P", "Evaluate this fraction of the training examples.", _APPROXIMATE, default=1.0
    ),
    projection: int | None = option("K", "Project gradients to K numbers.", _APPROXIMATE, min=2),
    seed: int = option(None, "Seed of both.", _APPROXIMATE, default=0, min=0),
    block_size: int = option(None, "Training terms per block.", SPEED, default=512, min=1),
    memory_budget: str = option("SIZE", "Memory beside weights and data.", SPEED, default="2GB"),
    precision: str = option("NAME", "fp32, bf16 (also for fp16) or fp64.", SPEED, default="fp32"),
    out: Path | None = options.OUT_FILE,
    format: str | None = options.OUT_FORMAT,
    device: str | None = options.DEVICE,
    devices: str | None = options.DEVICES,
    master_port: str | None = options.MASTER_PORT,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
    quiet: bool = options.QUIET,
) -> None:
    """Find the training examples of RUN that influence its predictions (TracIn).

    Training on a proponent lowered the loss of the test example, training on an
    opponent raised it. The scores are exact unless you choose an approximation.

    hasten influence runs/graph --triple aspirin,treats,headache
    """
    if sum([test is not None, bool(triple), bool(event), part is not None, itself]) != 1:
        raise UsageError(
            "nothing to explain, or more than one kind: give one of --test FILE, --triple h,r,t, "
            "--event user,item, --part test and --self"
        )
    options.one_of("loss", loss, ("training", "positive"))
    options.one_of("precision", precision, ("fp32", "bf16", "fp16", "fp64"))
    if precision == "fp16":
        precision = "bf16"
        output.say(
            "--precision fp16: residuals of a trained model are below 6e-8, the smallest number of "
            "fp16, and would become 0; bf16, which has the range of fp32, is used"
        )
    layers = {"1": "last", "2": "last-2", "3": "last-3"}.get(layers or "", layers)
    options.one_of("layers", layers, ("all", "last", "last-2", "last-3"))
    options.one_of("part", part, ("valid", "test"))
    if not 0 < sample_rate <= 1:
        raise UsageError(f"--sample-rate {sample_rate:g}: expected a number above 0 and up to 1")
    if itself and projection is not None:
        raise UsageError("--projection has no effect with --self, which needs no pairs: remove it")
    if itself and limit is not None:
        raise UsageError("--limit has no effect with --self; --topk limits its rows")
    memory = parse_size("--memory-budget", memory_budget)
    options.prepare_process(several=True)
    options.check_export(out, format)
    count = options.whole_number("devices", devices)
    port = options.whole_number("master-port", master_port) or 0
    options.maybe_start_processes(context, count or 1, count is not None, port)
    from hasten.inference.inputs import TRIPLE  # noqa: PLC0415 - imports torch
    from hasten.influence.queries import Selection, split_cells  # noqa: PLC0415
    from hasten.influence.run import Options, compute_influence  # noqa: PLC0415

    best = topk or _ROWS
    labels = [split_cells(text, TRIPLE, "triple") for text in triple or ()]
    labels += [split_cells(text, ("user", "item"), "event") for text in event or ()]
    if topk is None and not (itself and (out is not None or json)):
        topk = _SHOWN
    chosen = Options(
        loss=cast(Any, loss),
        layers=cast(Any, layers),
        checkpoints=checkpoints,
        topk=topk,
        sample_rate=sample_rate,
        projection=projection,
        seed=seed,
        memory=memory,
        block=block_size,
        precision=cast(Any, precision),
    )
    selection = Selection(labels or None, test, part, limit)
    influences = compute_influence(run, selection, chosen, device=device, quiet=quiet)
    if output.is_rank0():
        _report(influences, out, format, json, best)


def _report(
    influences: Influences, out: Path | None, format: str | None, json: bool, best: int
) -> None:
    """Write or print the rows (the ``best`` of several tests), and how they were computed."""
    from hasten.inference import export  # noqa: PLC0415 - imports pyarrow

    about = influences.about
    if out is not None:
        export.write_table(influences.table, out, format)
    names = ", ".join(str(c["name"]) for c in about["checkpoints"])
    subject = f"{about['tests']:,} tests" if about["tests"] else f"{about['train']:,} examples"
    output.say(
        f"{subject} by {names}; loss {about['loss']}, layers {about['layers']}; {about['method']}; "
        f"{about['seconds']:.1f} s"
    )
    if out is not None:
        output.say(f"{len(influences):,} rows in {out}")
    if json:
        output.write_json({**about, **output.rows("influences", influences.table, out)})
    elif out is None:
        rows = influences.table.to_pylist()
        if about["tests"] > 1:
            rows = [row for row in rows if row["test"] <= _TESTS and row["rank"] <= best]
        output.show_rows(rows, _COLUMNS)
        if hidden := len(influences) - len(rows):
            output.say(
                f"{hidden:,} more rows: of {about['tests']:,} tests, {_TESTS} are shown at most, "
                f"with {best} examples of each kind; --out FILE or --json has all, --limit N "
                "explains fewer tests"
            )
