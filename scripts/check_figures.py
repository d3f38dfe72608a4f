"""Check that the figures of the tables in README.md and docs are in the records named beside them.

    python -m scripts.check_figures [--list] [--prose] [--accept]

A record is a file of ``bench/results`` or a configuration of ``experiments/results``, linked in the
row, or else in its section. The figures that are not in such a record are counted by page in
``scripts/figures_without_record.txt``; more than there are an error, and so are any in README.md.
``--accept`` writes the counts, ``--list`` prints the figures, ``--prose`` those of the text that
have no record on their line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench.machine import ROOT
from experiments.summary import load_configurations

KNOWN = Path(__file__).parent / "figures_without_record.txt"
#: pages that are records themselves, or written from records or from the configuration
_SKIPPED = {"lab-log.md", "configuration.md", "experiments.md", "benchmarks.md", "never-run.md"}
#: headers of tables that hold no measurement
_NO_FIGURES = re.compile(
    r"\b(key|default|option|flag|meaning|what it does|what it is|purpose|command|file|column|field|"
    r"value for|name|page|symbol|module|decision|format|part of)\b", re.IGNORECASE,
)  # fmt: skip
_LINK = re.compile(r"\]\(([^)]+)\)")
_NUMBER = re.compile(
    r"(?<![\w.`/-])[\u2212-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e-?\d+)?(?![\w`])"
)
#: figures of a text: with decimals, or with a unit
_MEASURED = re.compile(
    r"(?<![\w.`/-])(?:\d[\d,]*\.\d+|\.\d{2,}|\d[\d,]*(?:\.\d+)?(?= ?(?:s|ms|us|min|h|MB|MiB"
    r"|GB|GiB|%|times|GFLOP)\b))"
)
#: what a figure may be given in: minutes, hours, thousands, MiB, GiB, per cent, milliseconds
_UNITS = (1.0, 1 / 60, 1 / 3600, 1e-3, 1e-6, 1e-9, 2.0**-20, 2.0**-30, 100.0, 1e3)


@dataclass
class Row:
    """A row of a table: its page and line, its figures, and the records that stand beside it."""

    page: str
    line: int
    figures: list[str]
    links: list[str] = field(default_factory=list)


def pages(root: Path = ROOT) -> list[Path]:
    found = sorted((root / "docs").rglob("*.md"))
    return [root / "README.md", *(page for page in found if page.name not in _SKIPPED)]


def rows(page: Path, root: Path = ROOT) -> Iterator[Row]:
    """The rows with figures of a page's tables."""
    text = page.read_text(encoding="utf-8").splitlines()
    name = str(page.relative_to(root))
    section: list[str] = []
    table: list[Row] = []
    header, fenced = "", False
    for number, line in enumerate([*text, "# end"], 1):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            yield from _with_links(table, section)
            table, section = [], []
        section += records_of(line)
        if not line.startswith("|"):
            header = ""
        elif not header:
            header = line
        elif not _NO_FIGURES.search(header) and not set(line) <= set("|-: "):
            figures = [f for cell in line.strip("| ").split(" | ")[1:] for f in numbers(cell)]
            if figures:
                table.append(Row(name, number, figures, records_of(line)))


def _with_links(table: Iterable[Row], section: Sequence[str]) -> Iterator[Row]:
    for row in table:
        row.links = row.links or list(section)
        yield row


def records_of(line: str) -> list[str]:
    """The records that a line links to: paths of results, or configurations of experiments."""
    found = []
    for link in _LINK.findall(line):
        target, _, anchor = link.partition("#")
        if "bench/results/" in target:
            found.append(f"bench/results/{Path(target).stem}")
        elif Path(target).name == "experiments.md" and anchor:
            found.append(f"experiments/{anchor}")
    return found


def numbers(cell: str) -> list[str]:
    """The figures of a cell that begins with one, without links, code, dates and names."""
    names = r"\]\([^)]*\)|`[^`]*`|\d{4}-\d\d-\d\d|\d+\.\d+\.\d+|\*\*|(?<![\w.])[A-Za-z]\S*\d\S*"
    plain = re.sub(r"(?<=\d)-(?=[\d.])", " ", re.sub(names, " ", cell))
    if not re.match(r"\s*[+\u2212-]?[\d.]", plain):  # a sentence
        return []
    return [found for found in _NUMBER.findall(plain) if re.search(r"\d", found)]


def values(record: str, configurations: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[float]:
    """Every number of a record; of an experiment also means and standard deviations."""
    folder, _, name = record.rpartition("/")
    if folder == "bench/results":
        path = ROOT / "bench" / "results" / f"{name}.json"
        return list(_numbers_in(json.loads(path.read_text()))) if path.exists() else []
    runs = configurations.get(name, ())
    found = [number for run in runs for number in _numbers_in({**run, "config": None})]
    columns = zip(*(_numbers_in(_figures(run)) for run in runs), strict=False)
    for column in columns:
        found.append(mean(column))
        if len(column) > 1:
            found.append(stdev(column))
    return [*found, float(len(runs))]


def _figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is averaged over seeds, in an order of its own."""
    links = (run.get("embeddings") or {}).get("links") or {}
    chosen = {name: run.get(name) for name in ("valid", "test", "epochs", "seconds", "also")}
    return {**chosen, "links": {name: links.get(name) for name in ("auroc", "ap")}}


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from _numbers_in(value[name])
    elif isinstance(value, list):
        for item in value:
            yield from _numbers_in(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def is_among(figure: str, known: Iterable[float]) -> bool:
    """Whether one of the numbers, in one of the units, is shown as this figure."""
    text = figure.replace(",", "").replace("\u2212", "-")
    shown = abs(float(text))
    decimals = len(text.partition("e")[0].partition(".")[2])
    slack = 0.5000001 * 10.0**-decimals if "e" not in text else 0.05 * shown
    return any(abs(abs(number) * unit - shown) <= slack for number in known for unit in _UNITS)


def check(root: Path = ROOT) -> dict[str, list[str]]:
    """By page, the figures of tables that are in no record beside them, a line each."""
    configurations = load_configurations(root / "experiments" / "results")
    found: dict[str, list[str]] = {}
    for page in pages(root):
        for row in rows(page, root):
            known = [number for record in row.links for number in values(record, configurations)]
            where = f"not in {', '.join(dict.fromkeys(row.links))}" if row.links else "no record"
            found.setdefault(row.page, []).extend(
                f"{row.page}:{row.line}: {figure}: {where}"
                for figure in row.figures
                if not is_among(figure, known)
            )
    return {page: lines for page, lines in found.items() if lines}


def prose(root: Path = ROOT) -> list[str]:
    """The figures of lines of text that name no record: page, line and figure."""
    found = []
    for page in pages(root):
        fenced = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            if fenced or line.startswith(("|", "#", "```")) or records_of(line):
                continue
            plain = re.sub(r"\]\([^)]*\)|`[^`]*`", " ", line)
            found += [
                f"{page.relative_to(root)}:{number}: {figure}"
                for figure in _MEASURED.findall(plain)
            ]
    return found


def main(arguments: Sequence[str]) -> int:
    if "--prose" in arguments:
        print("\n".join(prose()))
        return 0
    found = check()
    if "--list" in arguments:
        print("\n".join(line for lines in found.values() for line in lines))
    if "--accept" in arguments:
        KNOWN.write_text("".join(f"{page} {len(lines)}\n" for page, lines in sorted(found.items())))
    accepted = dict(line.rsplit(" ", 1) for line in KNOWN.read_text().splitlines())
    wrong = [
        f"{page}: {len(lines)} figures of tables are in no record beside them, where {KNOWN.name} "
        f"allows {accepted.get(page, 0)}: name the records (python -m scripts.check_figures --list)"
        for page, lines in found.items()
        if len(lines) > int(accepted.get(page, 0))
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
