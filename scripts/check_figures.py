"""Check that the figures of README.md and docs are in the records linked beside them.

    python -m scripts.check_figures

A figure is a number of a table, or a number of a sentence that has decimals or a unit. A record is
a file of ``bench/results`` or ``experiments``, a configuration of ``docs/experiments.md``, a
section of the lab log, or the output of a command in the same section. It is linked in the row or
the paragraph, or else in its section. A link to a section of another page stands for the records
of that section. Every figure without a record is printed, and the exit status is then 1.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench.machine import ROOT
from experiments.summary import load_configurations
from scripts.page_figures import blocks, records_of, sections

#: pages that are records themselves, or written from records or from the configuration
_SKIPPED = {"lab-log.md", "configuration.md", "devices.md", "experiments.md", "benchmarks.md"}
#: what a figure may be given in, and the numbers of a record that this is likely for: minutes and
#: hours, thousands, MB, GB, MiB and GiB, per cent, milliseconds
_UNITS = (
    (1.0, 0.0, math.inf), (1 / 60, 60.0, 1e5), (1 / 3600, 3600.0, 1e6), (1e-3, 1e3, 1e6),
    (1e-6, 1e6, 1e10), (1e-9, 1e8, 1e12), (2.0**-20, 1e5, 1e10), (2.0**-30, 1e8, 1e12),
    (100.0, 0.0, 1.0), (1e3, 0.0, 1.0),
)  # fmt: skip
_AS_IT_IS = _UNITS[:1]
_WRITTEN = re.compile(r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e-?\d+)?")


def pages(root: Path = ROOT) -> list[Path]:
    found = sorted((root / "docs").rglob("*.md"))
    return [root / "README.md", *(page for page in found if page.name not in _SKIPPED)]


class Records:
    """The numbers of records, by the path that a page links to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.configurations = load_configurations(root / "experiments" / "results")
        self.numbers = cache(self._numbers)

    def _numbers(self, record: str, follow: bool = True) -> list[float]:
        path, _, anchor = record.partition("#")
        if path == "docs/experiments.md":
            return _of_runs(self.configurations.get(anchor, ()))
        if not anchor:
            return _of_file(self.root / path)
        if not (follow or path == "docs/lab-log.md") or not (self.root / path).exists():
            return []
        text = (self.root / path).read_text(encoding="utf-8")
        lines = next((lines for name, _, lines in sections(text) if name == anchor), [])
        if path == "docs/lab-log.md":
            return _written("\n".join(lines))
        linked = records_of("\n".join(lines), path)
        found = [number for each in linked for number in self._numbers(each, follow=False)]
        return [*found, *outputs(lines)]

    def show(self, figure: str, records: Iterable[str]) -> bool:
        """Whether one of the records has this figure; a lab log in the same unit."""
        return any(
            is_among(figure, self.numbers(each), _AS_IT_IS if "lab-log" in each else _UNITS)
            for each in records
        )


def _of_file(path: Path) -> list[float]:
    found: list[float] = []
    for each in (path.with_suffix(".json"), path.with_suffix(".jsonl")):
        if each.exists():
            found += [n for line in _documents(each) for n in _numbers_in(line)]
    if path.suffix == ".md" and path.exists():
        found += _written(path.read_text(encoding="utf-8"))
    return found


def _documents(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(each) for each in (text.splitlines() if path.suffix == ".jsonl" else [text])]


def _of_runs(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Every number of an experiment, means and standard deviations over its seeds."""
    found = [n for run in runs for n in _numbers_in({**run, "config": None, "curve": None})]
    curves = [each for run in runs for each in run.get("curve", ())]
    unread = ("epoch", "loss", "seconds")
    found += [n for each in curves for name, n in each.items() if name not in unread]
    named = [dict(_by_name(_figures(run))) for run in runs]
    for name in named[0].keys() if named else ():
        column = [each[name] for each in named if name in each]
        if len(column) < len(named):  # older records have fewer metrics
            continue
        found.append(mean(column))
        if len(column) > 1:
            found.append(stdev(column))
    return [*found, float(len(runs))]


def _figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is averaged over seeds."""
    links = (run.get("embeddings") or {}).get("links") or {}
    names = ("valid", "test", "opened", "epochs", "seconds", "also")
    chosen = {name: run.get(name) for name in names}
    return {**chosen, "links": {name: links.get(name) for name in ("auroc", "ap")}}


def _by_name(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number, by the keys and positions that lead to it."""
    if isinstance(value, int | float):
        yield name, float(value)
    elif isinstance(value, Mapping | list):
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in inner:
            yield from _by_name(each, f"{name}/{key}")


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for name in sorted(value.keys() - {"relations"}):  # one figure for each relation
            yield from _numbers_in(value[name])
    elif isinstance(value, list):
        for item in value:
            yield from _numbers_in(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def _written(text: str) -> list[float]:
    """The numbers of a text."""
    found = _WRITTEN.findall(re.sub(r"(?<=\d)-(?=[\d.])", " ", text))
    return [float(each.replace(",", "")) for each in found if re.search(r"^[\d.,]*\d", each)]


def is_among(
    figure: str,
    known: Iterable[float],
    units: Sequence[tuple[float, float, float]] = _UNITS,
) -> bool:
    """Whether one of the numbers, in one of the units, is shown as this figure."""
    text = figure.replace(",", "").replace("\u2212", "-")
    shown = abs(float(text))
    decimals = len(text.partition("e")[0].partition(".")[2])
    slack = 0.5000001 * 10.0**-decimals if "e" not in text else 0.05 * shown
    sizes = [abs(number) for number in known]
    return any(
        abs(size * unit - shown) <= slack
        for size in sizes
        for unit, low, high in units
        if low <= size <= high
    )


def outputs(lines: Sequence[str]) -> list[float]:
    """The numbers of the commands and outputs that a section shows."""
    shown = re.findall(r"^```.*?^```", "\n".join(lines), re.DOTALL | re.MULTILINE)
    return _written("\n".join(shown))


def check(root: Path = ROOT) -> list[str]:
    """The figures that are in no record beside them, a line each."""
    records = Records(root)
    found = []
    for path in pages(root):
        for block in blocks(path.read_text(encoding="utf-8"), str(path.relative_to(root))):
            shown = outputs(block.section)
            where = f"not in {', '.join(block.records)}" if block.records else "no record"
            found += [
                f"{block.page}:{block.line}: {figure}: {where}"
                for figure in block.figures
                if not is_among(figure, shown, _AS_IT_IS)
                and not records.show(figure, block.records)
            ]
    return found


def main() -> int:
    found = check()
    if found:
        print("figures without a record, which is to be linked beside them:", file=sys.stderr)
        print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
