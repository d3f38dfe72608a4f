"""``hasten influence``: which training examples speak for a prediction, and which against it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hasten.cli import output
from hasten.cli.options import (
    DebugOption,
    DeviceOption,
    DevicesOption,
    JsonOption,
    MasterPortOption,
    OutFileOption,
    OutFormatOption,
    QuietOption,
    RunArgument,
    prepare_process,
    start_if_several,
    whole_number,
)
from hasten.cli.recommend import show_rows
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.influence.result import Influences

_COLUMNS = (
    "test", "kind", "rank", "influence", "head", "relation", "tail", "head_name", "tail_name",
    "user_id", "item_id", "position", "item_name",
)  # fmt: skip
_UNITS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_SHOWN = 20
_TIER = "Approximations"
_COST = "Speed and memory"


def influence(
    context: typer.Context,
    run: RunArgument,
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What to explain: triples, or user_id[,item_id]."),
    ] = None,
    triple: Annotated[
        list[str] | None, typer.Option(metavar="h,r,t", help="A triple to explain; repeatable.")
    ] = None,
    event: Annotated[
        list[str] | None, typer.Option(metavar="USER,ITEM", help="An event; repeatable.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="PART", help="A part of the data: valid or test.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="At most so many tests.", min=1)
    ] = None,
    itself: Annotated[
        bool,
        typer.Option("--self", help="Every training example on itself: finds mislabelled ones."),
    ] = False,
    topk: Annotated[
        int | None,
        typer.Option(help="Proponents and opponents of each (20); of --self rows (all).", min=1),
    ] = None,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="positive: the example alone; training: as trained.")
    ] = "positive",
    layers: Annotated[
        str | None, typer.Option(metavar="NAME", help="all, or the last: the scores' own layer.")
    ] = None,
    checkpoints: Annotated[
        str, typer.Option(metavar="NAMES", help="all, best, final, last, or epochs: 5,10.")
    ] = "best",
    sample_rate: Annotated[
        float,
        typer.Option(metavar="P", help="Look at this share of the data.", rich_help_panel=_TIER),
    ] = 1.0,
    projection: Annotated[
        int | None,
        typer.Option(metavar="K", help="Gradients as K numbers.", min=2, rich_help_panel=_TIER),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of both.", min=0, rich_help_panel=_TIER)] = 0,
    block_size: Annotated[
        int, typer.Option(help="Training terms at a time.", min=1, rich_help_panel=_COST)
    ] = 512,
    memory_budget: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Beside weights and data.", rich_help_panel=_COST),
    ] = "2GB",
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="fp32, bf16 or fp64.", rich_help_panel=_COST)
    ] = "fp32",
    out: OutFileOption = None,
    format: OutFormatOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    master_port: MasterPortOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Trace predictions of RUN to its training data (TracIn).

    For each test its proponents, which training on lowered its loss, and its
    opponents, which raised it. Exact unless an approximation is asked for.
    """
    given = [test is not None, bool(triple), bool(event), part is not None, itself]
    if sum(given) != 1:
        raise UsageError(
            "what is to be explained? give one of --test FILE, --triple h,r,t, --event user,item, "
            "--part test and --self"
        )
    _one_of("loss", loss, ("training", "positive"))
    _one_of("precision", precision, ("fp32", "bf16", "fp64"))
    if layers is not None:
        _one_of("layers", layers, ("all", "last"))
    if part is not None:
        _one_of("part", part, ("valid", "test"))
    if not 0 < sample_rate <= 1:
        raise UsageError(f"--sample-rate {sample_rate:g}: a share above 0, at most 1")
    if itself and projection is not None:
        raise UsageError(
            "--projection has no use with --self, which is exact without products of pairs: leave "
            "it out"
        )
    if itself and limit is not None:
        raise UsageError("--limit is of tests, and --self has none: --topk shows the first rows")
    if format is not None and out is None:
        raise UsageError("--format is the format of --out FILE, which is not given")
    memory = _bytes(memory_budget)
    prepare_process(several=True)
    from hasten.inference import export  # noqa: PLC0415 - brings pyarrow

    if out is not None:
        export.check_target(out, format)
    count = whole_number("devices", devices)
    port = whole_number("master-port", master_port) or 0
    start_if_several(context, count or 1, count is not None, port)
    from hasten.influence import flow  # noqa: PLC0415 - brings torch

    if topk is None and not (itself and (out is not None or json)):
        topk = _SHOWN
    found = flow.influence(
        run,
        _asked(run, test, triple, event, part, limit),
        flow.Options(
            loss=cast(Any, loss),
            layers=cast(Any, layers or _widest(run)),
            checkpoints=checkpoints,
            topk=topk,
            sample_rate=sample_rate,
            projection=projection,
            seed=seed,
            memory=memory,
            block=block_size,
            precision=cast(Any, precision),
        ),
        device=device,
        quiet=quiet,
    )
    if output.speaks():
        _tell(found, out, format, json)


def _tell(found: Influences, out: Path | None, format: str | None, json: bool) -> None:
    """Write, print, and say how it was made."""
    from hasten.inference import export  # noqa: PLC0415 - brings pyarrow

    about = found.about
    if out is not None:
        export.write_table(found.table, out, format)
    names = ", ".join(str(c["name"]) for c in about["checkpoints"])
    what = f"{about['tests']:,} tests" if about["tests"] else f"{about['train']:,} examples"
    output.say(
        f"{what} by {names}; loss {about['loss']}, layers {about['layers']}; {about['method']}; "
        f"{about['seconds']:.1f} s"
    )
    if out is not None:
        output.say(f"{len(found):,} rows in {out}")
    if json:
        rest = {"influences": found.table.to_pylist()} if out is None else {"out": out}
        output.write_json({**about, **rest})
    elif out is None:
        show_rows(found.table.to_pylist(), _COLUMNS)


def _asked(
    run: Path,
    test: Path | None,
    triple: list[str] | None,
    event: list[str] | None,
    part: str | None,
    limit: int | None,
) -> Any:
    from hasten.inference.inputs import TRIPLE, read_events  # noqa: PLC0415 - only when needed
    from hasten.influence import flow  # noqa: PLC0415
    from hasten.influence import queries as asked  # noqa: PLC0415

    labels: list[tuple[str, ...]] | None = None
    if triple:
        labels = [asked.split_cells(text, TRIPLE, "triple") for text in triple]
    elif event:
        labels = [asked.split_cells(text, ("user", "item"), "event") for text in event]
    elif test is not None:
        config = _config(run)
        if _reads_triples(config):
            labels = list(asked.read_test_triples(test, config.data))
        else:
            labels = read_events(test)
    return flow.Asked(labels, part, limit)


def _widest(run: Path) -> str:
    """The layers that are traced where nothing is said: all where that has an exact form."""
    return "all" if _reads_triples(_config(run)) else "last"


def _config(run: Path) -> Any:
    from hasten.configuration.build import load_config  # noqa: PLC0415 - only when needed
    from hasten.runs.run_folder import RunFolder  # noqa: PLC0415

    RunFolder.open(run, lock=False)
    return load_config(run / "config.yaml")


def _reads_triples(config: Any) -> bool:
    from hasten.config import TripleOptions  # noqa: PLC0415 - only when needed

    return isinstance(config.data, TripleOptions)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"--{name} {value}: must be one of {', '.join(known)}")


def _bytes(text: str) -> int:
    """``2GB``, ``500MB`` or a number of bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]b|)", text.strip().lower())
    if match is None:
        raise UsageError(f"--memory-budget {text}: expected a size such as 2GB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])
