"""``hasten export``: a run as files of another program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hasten.cli import options, output
from hasten.cli.options import option


def export(
    run: Path = options.RUN,
    to: str = option("NAME", "onnx, torch, faiss, numpy, projector or heterodata.", default=...),
    out: Path | None = option("DIR", "Folder to write to; default: export-NAME in the run folder."),
    topk: int = option("N", "Items that onnx and torch return; compared.", default=10, min=1),
    checkpoint: str = options.CHECKPOINT,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Export the model of RUN, and compare the export with hasten.

    The files are read again and answer up to 1,000 queries: export.json records how much of the
    top items agrees, the largest difference of a score, and the latency of both.

    hasten export runs/mine --to onnx --out exported
    """
    options.prepare_process()
    from hasten.exporting import export as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    engine.check_form(to)
    target = run / f"export-{to}" if out is None else out
    loaded = load_run(run, checkpoint=checkpoint, device="cpu")
    exported = engine.export(loaded, to, target, topk)
    parity = exported.parity
    output.say(f"{', '.join(path.name for path in exported.files)} in {target}")
    output.say(
        f"top {parity.k} of {parity.queries:,} queries: {100 * parity.overlap:.2f} % the same "
        f"({exported.compared}); largest difference of a score {parity.difference:.2g}"
    )
    output.say(
        f"one query takes {parity.exported_ms:.2f} ms, in hasten {parity.hasten_ms:.2f} ms (median)"
    )
    if json:
        output.write_json(
            {
                "run": run,
                "checkpoint": checkpoint,
                "to": to,
                "files": exported.files,
                **asdict(parity),
            }
        )
