"""``hasten predict``: complete triples with a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from hasten.cli import options, output
from hasten.cli.options import option
from hasten.errors import UsageError

_COLUMNS = (
    "question", "rank", "head", "relation", "tail", "score", "known",
    "head_name", "relation_name", "tail_name",
)  # fmt: skip


def predict(
    run: Path = options.RUN,
    head: str | None = option("ENTITY", "The head entity."),
    relation: str | None = option("RELATION", "The relation."),
    tail: str | None = option("ENTITY", "The tail entity."),
    questions: Path | None = option(
        "FILE", "File of queries: CSV or Parquet with two of head,relation,tail."
    ),
    topk: int = option("N", "Answers per query.", default=10, min=1),
    known: str = option("HOW", "Known triples of the data: filter or mark.", default="filter"),
    out: Path | None = options.OUT_FILE,
    format: str | None = options.OUT_FORMAT,
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Complete triples of the knowledge graph of RUN.

    Two of --head, --relation and --tail predict the third. Triples of the
    training, validation and test parts are left out, or marked.

    hasten predict runs/graph --head aspirin --relation treats

    hasten predict runs/graph --questions queries.csv --known mark --out answers.csv
    """
    parts = {"head": head, "relation": relation, "tail": tail}
    question = {name: text for name, text in parts.items() if text is not None}
    if questions is not None and question:
        raise UsageError("give --questions FILE, or two of --head, --relation and --tail")
    if questions is None and len(question) != 2:
        raise UsageError("no query: give two of --head, --relation and --tail, or --questions")
    if known not in ("filter", "mark"):
        raise UsageError(f"--known {known}: must be filter or mark")
    options.prepare_process()
    from hasten.inference import export, inputs  # noqa: PLC0415 - brings pyarrow

    options.check_export(out, format)
    queries = [question] if questions is None else inputs.read_questions(questions)
    from hasten.inference import predict as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    predictions = engine.predict(loaded, queries, topk, known=cast(engine.Known, known))
    table = predictions.to_table()
    if out is not None:
        export.write_table(table, out, format)
        output.say(f"{len(predictions):,} rows for {len(queries):,} questions in {out}")
    if json:
        about = {
            "run": run,
            "model": loaded.config.model.name,
            "checkpoint": checkpoint,
            "known": known,
            "questions": len(queries),
            "rows": len(predictions),
        }
        output.write_json(about | output.rows("predictions", table, out))
    else:
        if known == "filter":
            output.say("answers that the data have already are left out (--known mark shows them)")
        if out is None:
            output.show_rows(table.to_pylist(), _COLUMNS)
