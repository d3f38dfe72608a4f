"""``hasten vectors`` and ``hasten similar``: the vectors of a run, and the nearest items."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from hasten.cli import options, output
from hasten.cli.embed import save_embeddings, target_of
from hasten.cli.options import option


def vectors(
    run: Path = options.RUN,
    of: str | None = option("NAME", "items, users or entities; default: items, or entities."),
    out: Path | None = option("FILE", "File to write; default: vectors.* in the run folder."),
    format: str | None = option("NAME", "csv, parquet, npy or projector (a folder)."),
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Write the vectors of the items, users or entities of RUN.

    A score of RUN is the inner product of the vectors of a user and an item.
    """
    options.prepare_process()
    form, target = target_of(run, out, format, "vectors" if of is None else of)
    from hasten.inference import vectors as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    found = engine.vectors(loaded, cast(engine.What | None, of))
    about = save_embeddings(found, target, form)
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
    """List the items that are most similar to an item, by the cosine of the vectors of RUN."""
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
