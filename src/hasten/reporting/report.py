"""``hasten.report``: a report of one run, or of several side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from hasten.atomic_write import write_atomically
from hasten.errors import HastenError, UsageError, os_errors_as
from hasten.reporting import behavior, overview, training
from hasten.reporting.analysis import Part, analyze
from hasten.reporting.blocks import Document
from hasten.reporting.html import to_html
from hasten.reporting.markdown import to_markdown
from hasten.reporting.side_by_side import comparison_section
from hasten.reporting.stored import StoredRun

Format = Literal["html", "md"]
#: points of all maps together, and sections are still readable with so many runs
_POINTS, _RUNS = 4_000, 8


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A report. path: the file it was written to, if it was."""

    document: Document
    path: Path | None = None

    def to_html(self) -> str:
        """One page that needs no other file and no network."""
        return to_html(self.document)

    def to_markdown(self) -> str:
        """For a terminal or a pull request."""
        return to_markdown(self.document)

    def __repr__(self) -> str:
        where = "not written" if self.path is None else str(self.path)
        return f"<hasten report: {self.document.title}; {where}>"


def report(
    *runs: str | Path,
    out: str | Path | None = None,
    format: str | None = None,
    part: str = "valid",
    checkpoint: str = "best",
    device: str = "auto",
) -> Report:
    """Describe runs: curves, cost, metrics, groups, lists beyond accuracy, examples, a map.

    Several runs stand side by side, with intervals of their differences from the first. Runs that
    have not ended are described as far as they came.

    out: the file to write; None: none. format: ``html`` or ``md``; None: by the name of the file,
    otherwise HTML. part: measured with the model: ``valid``, or at the end ``test``, which is
    evaluated then. Test metrics that a run has recorded are shown in any case. checkpoint, device:
    as for :func:`hasten.load`. Raises hasten.HastenError.
    """
    chosen = _format(format, out)
    if part not in ("valid", "test"):
        raise UsageError(f"part {part}: must be valid or test")
    if not 1 <= len(runs) <= _RUNS:
        raise UsageError(f"a report is of 1 to {_RUNS} runs, not of {len(runs)}")
    paths = list(dict.fromkeys(Path(run) for run in runs))
    stored = [StoredRun.read(path) for path in paths]
    document = _document(stored, cast(Part, part), checkpoint, device)
    if out is None:
        return Report(document)
    text = to_html(document) if chosen == "html" else to_markdown(document)
    with os_errors_as(HastenError, "the report cannot be written", Path(out)):
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(out), text.encode())
    return Report(document, Path(out))


def _format(given: str | None, out: str | Path | None) -> Format:
    if given is not None and given not in ("html", "md"):
        raise UsageError(f"format {given}: must be html or md")
    if given is not None:
        return cast(Format, given)
    return "md" if out is not None and Path(out).suffix in (".md", ".markdown") else "html"


def _document(runs: Sequence[StoredRun], part: Part, checkpoint: str, device: str) -> Document:
    names = _names(runs)
    points = _POINTS // max(2, len(runs))
    analyses = [analyze(run.path, part, checkpoint, device, points) for run in runs]
    sections = [overview.summary_section(runs, names)]
    if len(runs) > 1:
        sections.append(comparison_section(runs, names, part, device))
    possible = [
        overview.metrics_section(runs, names, analyses),
        training.curves_section(runs, names),
        behavior.groups_section(runs, names, analyses),
        behavior.beyond_section(names, analyses),
        behavior.examples_section(names, analyses),
        behavior.map_section(names, analyses),
        training.cost_section(runs, names, analyses),
        overview.settings_section(runs, names),
        overview.data_section(runs, names),
        behavior.notes_section(names, analyses),
    ]
    sections += [section for section in possible if section is not None]
    titles = dict.fromkeys(f"{run.model} on {run.data.get('name')}" for run in runs)
    title = next(iter(titles)) if len(titles) == 1 else f"{len(runs)} runs"
    title += f": {len(runs)} runs" if len(runs) > 1 and len(titles) == 1 else ""
    folders = ", ".join(str(run.path) for run in runs)
    ended = max((line.get("time", 0) for run in runs for line in run.lines), default=0)
    when = f", last trained {time.strftime('%Y-%m-%d', time.gmtime(ended))}" if ended else ""
    return Document(title, f"{folders}{when}", sections, names)


def _names(runs: Sequence[StoredRun]) -> list[str]:
    """The last parts of the paths; whole paths if these are not distinct."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]
