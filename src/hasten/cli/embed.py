"""``hasten embed``, ``vectors``, ``similar`` and ``check-embeddings``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from hasten.cli import options, output
from hasten.cli.options import argument, option
from hasten.errors import HastenError, UsageError

if TYPE_CHECKING:
    from hasten.inference.embed import Embeddings

_ENDINGS = {"csv": ".csv", "parquet": ".parquet", "npy": ".npy", "projector": ""}


def embed(
    run: Path = options.RUN,
    out: Path | None = option("FILE", "File to write; default: embeddings.* in the run folder."),
    format: str | None = option("NAME", "csv (default), parquet, npy or projector (a folder)."),
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Write the embeddings of all nodes of RUN.

    CSV and Parquet have the columns node_id, node_name, node_type, embedding.

    hasten embed runs/graph --out nodes.parquet
    """
    options.prepare_process()
    form, target = _target_of(run, out, format, "embeddings")
    from hasten.inference.embed import embed as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    embeddings = engine(load_run(run, checkpoint=checkpoint, device=device or "auto"))
    about = _save(embeddings, target, form)
    output.say(f"next: hasten check-embeddings {run}")
    if json:
        output.write_json({"run": run, "checkpoint": checkpoint, **about})


def vectors(
    run: Path = options.RUN,
    of: str | None = option("NAME", "items, users or entities; default: items, or entities."),
    out: Path | None = option("FILE", "File to write; default: vectors.* in the run folder."),
    format: str | None = option("NAME", "csv (default), parquet, npy or projector (a folder)."),
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Write the vectors of the items, users or entities of RUN.

    A score of RUN is the inner product of the vectors of a user and an item.

    hasten vectors runs/mine --of users --out users.npy
    """
    options.prepare_process()
    form, target = _target_of(run, out, format, "vectors" if of is None else of)
    from hasten.inference import vectors as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    table = engine.vectors(loaded, cast(engine.What | None, of))
    about = _save(table, target, form)
    if json:
        output.write_json({"run": run, "checkpoint": checkpoint, **about})


def similar(
    run: Path = options.RUN,
    item: str = option("FILE|a,b,c", "Items, or entities of a knowledge graph.", default=...),
    topk: int = option("N", "Similar items per item.", default=10, min=1),
    out: Path | None = options.OUT_FILE,
    format: str | None = options.OUT_FORMAT,
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """List the items that are most similar to an item, by the cosine of the vectors of RUN.

    hasten similar runs/mine --item 11,10 --topk 5
    """
    options.prepare_process()
    from hasten.inference import export, inputs  # noqa: PLC0415 - brings pyarrow

    options.check_export(out, format)
    items = inputs.read_labels(item, inputs.ITEM)
    from hasten.inference import vectors as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    table = engine.similar_items(loaded, items, topk).to_table()
    if out is not None:
        export.write_table(table, out, format)
        output.say(f"{len(table):,} rows for {len(items):,} items in {out}")
    if json:
        output.write_json(
            {"run": run, "checkpoint": checkpoint} | output.rows("similar", table, out)
        )
    elif out is None:
        output.show_rows(table.to_pylist(), table.column_names)


def _target_of(run: Path, out: Path | None, format: str | None, name: str) -> tuple[str, Path]:
    """The format, and the file or folder to write. Raises UsageError if it cannot be written."""
    ending = "" if out is None else out.suffix.removeprefix(".")
    form = format or ending or "csv"
    if form not in _ENDINGS:
        raise UsageError(f"format {form!r}: there are {', '.join(_ENDINGS)}")
    target = run / f"{name}{_ENDINGS[form]}" if out is None else out
    if form != "projector" or not target.is_dir():
        from hasten.inference.export import check_file  # noqa: PLC0415 - brings pyarrow

        check_file(target)
    return form, target


def _save(embeddings: Embeddings, target: Path, form: str) -> dict[str, Any]:
    """Write them, say so, and return what JSON says of them."""
    from hasten.inference.embed import write_embeddings  # noqa: PLC0415 - brings torch

    files, width = write_embeddings(embeddings, target, form), embeddings.vectors.shape[1]
    output.say(f"{len(embeddings):,} embeddings of width {width} in {', '.join(map(str, files))}")
    return {"format": form, "files": files, "nodes": len(embeddings), "width": width}


def check(
    what: Path = argument("FILE|RUN", "A file, or a run folder.", default=...),
    plots: Path | None = option("DIR", "Folder for the plots pca.png and variance.png."),
    max_cosine: float | None = option("X", "Maximum mean cosine similarity; default: 0.5."),
    min_components: int | None = option(
        "N", "Minimum components for 90 % of the variance; default: 15.", min=1
    ),
    within: list[str] | None = option(
        "TYPE=A..B", "Mean cosine within a node type, such as disease=0.5..0.8; repeatable."
    ),
    part: str | None = options.PART,
    sample: int = option("N", "Nodes to sample.", default=2048, min=2),
    seed: int = option("N", "Seed of the sample.", default=0, min=0),
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Test embeddings for collapse, in comparison with random vectors.

    For a run also test link prediction on held-out links. The exit code is 1 if a
    criterion is not met. If the links are told from others, the default limits and
    types that are not told apart are only noted; limits that you give are criteria.

    hasten check-embeddings runs/graph

    hasten check-embeddings embeddings.csv
    """
    if not what.exists():
        raise UsageError(f"{what}: no such file or run folder")
    options.one_of("part", part, ("valid", "test"))
    options.prepare_process()
    from hasten.inference.check_embeddings import check_embeddings  # noqa: PLC0415 - brings torch

    report = check_embeddings(
        what, plots=plots, max_cosine=max_cosine, min_components=min_components, part=part,
        within=dict(map(_limits, within or ())),
        sample=sample, seed=seed, checkpoint=checkpoint, device=device or "auto",
    )  # fmt: skip
    _show(report)
    if json:
        output.write_json(report)
    if report["problems"]:
        error = HastenError(f"{what}: " + "; ".join(report["problems"]))
        if json:
            raise typer.Exit(error.exit_code)
        raise error


def _limits(text: str) -> tuple[str, tuple[float, float]]:
    """The type and the limits of ``TYPE=A..B``; the type may contain an equals sign."""
    name, _, limits = text.rpartition("=")
    low, dots, high = limits.partition("..")
    try:
        if name and dots and -1 <= float(low) <= float(high) <= 1:
            return name, (float(low), float(high))
    except ValueError:
        pass
    raise UsageError(f"--within {text}: expected TYPE=A..B with -1 <= A <= B <= 1")


def _show(report: dict[str, Any]) -> None:
    """Print the diagnostics beside those of random vectors."""
    if report["health"] is not None:
        output.say(f"{'':<16} {'these':>10} {'random':>10}")
        for name, value in report["health"].items():
            if name in ("within_type", "nodes", "width"):
                continue
            other = report["random"][name]
            output.say(f"{name:<16} {_number(value):>10} {_number(other):>10}")
        for name, value in report["health"]["within_type"].items():
            output.say(f"  within {name}: {value:.3f}")
    else:
        output.say("embeddings: this model has none; only its links are evaluated")
    if report["links"] is not None:
        links = report["links"]
        output.say(f"held-out links of {report['part']}: AUROC {links['auroc']:.4f}, "
                   f"AP {links['ap']:.4f} (means over relations)")  # fmt: skip
        for name, each in links["relations"].items():
            output.say(
                f"  {name}: AUROC {each['auroc']:.4f}, AP {each['ap']:.4f}, "
                f"{each['links']:.0f} links"
            )
    else:
        output.say("links: not evaluated (give the run folder instead of a file)")
    output.say(report["note"])
    for text in report["noted"]:
        output.say(f"noted, no failure, since held-out links are told from others: {text}")


def _number(value: float) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
