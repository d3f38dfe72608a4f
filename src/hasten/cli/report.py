"""``hasten report``: a page about one run, or about several side by side."""

from __future__ import annotations

import sys
from pathlib import Path

from hasten.cli import options, output
from hasten.cli.options import argument, option
from hasten.errors import UsageError


def report(
    runs: list[Path] = argument("RUN...", "Run folders; the first is the baseline.", default=...),
    out: Path | None = option(
        "FILE", "The file; default: RUN/report.html, of several runs report.html."
    ),
    format: str | None = option("NAME", "html, or md: Markdown, on stdout without --out."),
    part: str = option(
        "NAME", "Measure the model on this part: valid, or at the end test.", default="valid"
    ),
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Describe runs on one HTML page that works offline, or in Markdown.

    Curves, cost, metrics by group, recommended lists beyond accuracy,
    examples, an embedding map and the switches in effect.

    hasten report runs/first

    hasten report runs/first runs/second --out both.html
    """
    options.one_of("part", part, ("valid", "test"))
    if format is not None:
        options.one_of("format", format, ("html", "md"))
    if json and format == "md" and out is None:
        raise UsageError("--json and --format md both write to stdout: give --out FILE")
    options.prepare_process()
    from hasten.reporting.report import report as engine  # noqa: PLC0415 - brings torch

    if out is None and format != "md":
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    written = engine(
        *runs, out=out, format=format, part=part, checkpoint=checkpoint, device=device or "auto"
    )
    if json:
        about = {"report": out, "title": written.document.title, "runs": runs, "part": part}
        output.write_json(about)
    if out is None:
        sys.stdout.write(written.to_markdown())
    else:
        output.say(f"report      {out}")
