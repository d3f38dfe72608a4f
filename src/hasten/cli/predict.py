"""``hasten predict``: complete triples with the model of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

from hasten.cli import output
from hasten.cli.options import (
    CheckpointOption,
    DebugOption,
    DeviceOption,
    JsonOption,
    OutFileOption,
    OutFormatOption,
    RunArgument,
    check_export,
    flag,
    prepare_process,
)
from hasten.cli.recommend import show_rows
from hasten.errors import UsageError

_COLUMNS = (
    "question", "rank", "head", "relation", "tail", "score", "known",
    "head_name", "relation_name", "tail_name",
)  # fmt: skip


def predict(
    run: RunArgument,
    head: Annotated[str | None, flag("ENTITY", "The head entity.")] = None,
    relation: Annotated[str | None, flag("RELATION", "The relation.")] = None,
    tail: Annotated[str | None, flag("ENTITY", "The tail entity.")] = None,
    questions: Annotated[
        Path | None,
        flag("FILE", "File of queries: CSV or Parquet with two of head,relation,tail."),
    ] = None,
    topk: Annotated[int, flag("N", "Answers per query.", min=1)] = 10,
    known: Annotated[str, flag("HOW", "Known triples of the data: filter or mark.")] = "filter",
    out: OutFileOption = None,
    format: OutFormatOption = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Complete triples of the knowledge graph of RUN.

    Two of --head, --relation and --tail predict the third. Triples of the
    training, validation and test parts are left out, or marked.
    """
    given = {
        name: text
        for name, text in (("head", head), ("relation", relation), ("tail", tail))
        if text is not None
    }
    if questions is not None and given:
        raise UsageError("give --questions FILE, or two of --head, --relation and --tail")
    if questions is None and len(given) != 2:
        raise UsageError("no query: give two of --head, --relation and --tail, or --questions")
    if known not in ("filter", "mark"):
        raise UsageError(f"--known {known}: must be filter or mark")
    prepare_process()
    from hasten.inference import export, inputs  # noqa: PLC0415 - brings pyarrow

    check_export(out, format)
    asked = [given] if questions is None else inputs.read_questions(questions)
    from hasten.inference import predict as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    found = engine.predict(loaded, asked, topk, known=cast(engine.Known, known))
    table = found.to_table()
    if out is not None:
        export.write_table(table, out, format)
        output.say(f"{len(found):,} rows for {len(asked):,} questions in {out}")
    if json:
        about = {
            "run": run,
            "model": loaded.config.model.name,
            "checkpoint": checkpoint,
            "known": known,
            "questions": len(asked),
            "rows": len(found),
        }
        rest = {"predictions": table.to_pylist()} if out is None else {"out": out}
        output.write_json(about | rest)
    elif out is None:
        show_rows(table.to_pylist(), _COLUMNS)
