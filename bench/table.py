"""Write the newest results into docs/benchmarks.md, README.md and the guide of ConvE.

The last two have markers, between which the tables are.

python -m bench.table [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.entries import ENTRIES
from bench.half_memory import memory_table as half_memory_table
from bench.harness import HASTEN
from bench.machine import ROOT
from bench.plan_accuracy import accuracy_table
from bench.precision_memory import memory_table
from bench.results import (
    blocks,
    digits,
    earlier_results,
    is_provisional,
    results_by_name,
    timed_part,
    with_interval,
)
from bench.sources import is_stale

BEGIN = "<!-- benchmarks: written by make docs -->"
END = "<!-- end of benchmarks -->"
MEMORY_BEGIN = "<!-- precision and memory: written by make docs -->"
MEMORY_END = "<!-- end of precision and memory -->"

PAGE = """# Benchmarks

Speed and peak memory of hasten against other implementations. `make bench` repeats the
measurements; `make bench ARGS="--list"` lists them. Each row links to a dated file in
`bench/results` with the machine, the settings and the command.

How to read the tables:

- All sides of a row do the same work. *What people run* is the published package or the authors'
  code, unchanged. *Plain PyTorch* is the fastest version that we could write without hasten.
- Seconds are for one epoch with two threads, unless the row names a layer, an operation, a training
  step or a number of pairs. An empty cell was not measured.
- A speed-up is the median over blocks of the other side's seconds divided by hasten's. A block runs
  all sides one after the other. The range in parentheses is a distribution-free 95 % interval of
  the median; below six blocks it is the full range.
- *Timed* is the part of an epoch that was run, for each side in the order of the columns, hasten
  last. The rest of its time is extrapolated.
- A row with fewer than seven blocks is *provisional*. It is not in the README.
- The seconds of a row are medians of its own session, and sessions differ: only ratios within a
  row can be compared.
- A row is *stale* if the code that it measured has changed since. Comments, docstrings and code
  that runs only before the first step (the command line, readers, recipes) do not count.
- Results are never replaced. Where a comparison was measured more than once, the row shows the
  newest result with enough blocks, and then the speed-ups of the others.
- Every result is of a commit. Those of 21 and 22 November with uncommitted changes were removed.
- Every measurement is a fresh process. The sides alternate on the same machine, with the same
  allocator settings, number of threads and version of PyTorch.
- Peak memory is `VmHWM` in MiB, measured without the settings that keep freed pages.

## Against other implementations

{comparisons}

## Effect of single settings

The same run of hasten without a setting and with it.

{studies}

## What hasten plan predicts

`python -m bench.plan_accuracy` plans each run and trains it right after in a fresh process. Peak
memory is `VmHWM`. Seconds per epoch are the median over the epochs of the run. A case outside the
limits is measured twice more, and the median of the three errors counts. No finished runs correct
the predictions. `pop` and `degree` take no steps, so they have no seconds per epoch and no sizes.

{plan}

## Half of the peak memory

`python -m bench.half_memory` trains each model without a budget and then with `--memory-budget` of
half the peak, on made samples, without dropout. Peak memory is `VmHWM` of fresh processes. A model
passes if the run keeps to its budget and no loss differs by more than 1e-4. Seconds are of single
runs, so they say little.

{half}

## Earlier measurements

Results from before 2026-11-23. They have one baseline each and mostly one or two blocks, and some
compare a first step with a later one. Do not quote them.

{earlier}
"""
#: of each kind of table, the roles beside hasten and the heads of their columns
_COMPARED = {"published": "what people run", "plain": "plain PyTorch"}
_STUDIED = {"without": "without it"}
_FIGURES = "hasten, s | peak MiB | "
_MEASUREMENT = "blocks | timed | machine | "


Results = Mapping[str, Sequence[Mapping[str, Any]]]


def comparison_table(results: Results, folder: str) -> str:
    """One row a comparison with other implementations. folder: where the result files are."""
    compared = {name: found for name, found in results.items() if not _is_study(found)}
    return _rows("comparison", _COMPARED, compared, folder)


def headline_table(results: Results, folder: str) -> str:
    """The comparisons that have enough blocks, without how and how often they were measured."""
    headlines = {
        name: [shown(found)]
        for name, found in results.items()
        if not _is_study(found) and not is_provisional(shown(found))
    }
    if results and not headlines:
        return "No comparison has seven blocks yet."
    return _rows("comparison", _COMPARED, headlines, folder, brief=True)


def study_table(results: Results, folder: str) -> str:
    """One row a setting."""
    studies = {name: found for name, found in results.items() if _is_study(found)}
    return _rows("setting", _STUDIED, studies, folder)


def earlier_table(results: Sequence[Mapping[str, Any]], folder: str) -> str:
    """One line a result of before there were two baselines."""
    lines = ["| | baseline | speed-up (wall time) | measured |", "| --- | --- | --- | --- |"]
    for result in results:
        wall = result["summary"].get("wall")
        ratio = with_interval(wall["ratio"]) if wall else ""
        link = f"[{result['date']}]({folder}/{result['file']}.md)"
        lines.append(f"| {result['title']} | {result['sides'][0]['label']} | {ratio} | {link} |")
    return "\n".join(lines)


def _is_study(found: Sequence[Mapping[str, Any]]) -> bool:
    return "without" in found[0]["sides"]


def shown(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the results of a name, newest first, the newest with enough blocks, or the newest."""
    return next((result for result in found if not is_provisional(result)), found[0])


def _rows(
    kind: str, roles: Mapping[str, str], results: Results, folder: str, *, brief: bool = False
) -> str:
    head = f"| {kind} | {' | '.join(f'{role} | speed-up' for role in roles.values())} | {_FIGURES}"
    head += ("" if brief else _MEASUREMENT) + "measured |"
    lines = [head, "|" + " --- |" * (head.count("|") - 1)]
    for found in results.values():
        result = shown(found)
        sides = {role: side["label"] for role, side in result["sides"].items()}
        title = result["title"]
        if entry := ENTRIES.get(result["name"]):  # its wording may be newer than the result
            title = entry.title
            sides |= {role: side.label for role, side in entry.sides.items() if role in sides}
        cells = [title]
        for role in roles:
            value = _median(result, "wall", role, 1.0)
            cells.append(f"{sides[role]}, {value} s" if value else sides.get(role, ""))
            cells.append(_ratio(result, role))
        peaks = [_median(result, "memory", role, 2.0**-20) for role in sides]
        cells += [_median(result, "wall", HASTEN, 1.0), " / ".join(p for p in peaks if p)]
        if not brief:
            timed = [timed_part(result, role) for role in sides]
            cells += [str(blocks(result)), " / ".join(timed), _machine(result["machine"])]
        cells.append(_measured(result, found, folder))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) if results else "No result yet."


def _ratio(result: Mapping[str, Any], role: str) -> str:
    ratios = result["summary"].get("wall", {}).get("ratios", {})
    return with_interval(ratios[role]) if role in ratios else ""


def _median(result: Mapping[str, Any], mode: str, role: str, scale: float) -> str:
    sides = result["summary"].get(mode, {}).get("sides", {})
    return digits(sides[role]["median"] * scale) if role in sides else ""


def _machine(machine: Mapping[str, Any]) -> str:
    """The processor and its widest instructions."""
    wide = "AVX-512" if "avx512f" in machine["instructions"] else "AVX2"
    name = machine["cpu"].replace("(R)", "").replace(" Processor", "")
    return f"{name}, {wide}, {machine['cores']} cores"


def _measured(result: Mapping[str, Any], found: Sequence[Mapping[str, Any]], folder: str) -> str:
    """The record of a row, its marks, and the speed-ups of the other measurements."""
    marks = ["provisional"] * is_provisional(result) + ["stale"] * is_stale(result)
    text = f"[{result['date']}]({folder}/{result['file']}.md)"
    text += f" ({', '.join(marks)})" if marks else ""
    others = []
    for other in found:
        ratios = " and ".join(filter(None, (_ratio(other, role) for role in other["sides"])))
        if other is not result and ratios:
            others.append(f"{ratios} ([{other['date']}]({folder}/{other['file']}.md))")
    return text + (f"; also {', '.join(others)}" if others else "")


def replaced(text: str, body: str, begin: str = BEGIN, end: str = END) -> str:
    """``text`` with ``body`` between the markers; an error where a marker is missing."""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the markers {begin} and {end} are missing")
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"


def write_pages(wanted: Mapping[Path, str], root: Path, *, check: bool) -> int:
    """Write the pages that differ; check: only name them, and return 1 if there are any."""
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(root)} is stale: run make docs", file=sys.stderr)
        else:
            path.write_text(wanted[path])
    return 1 if check and stale else 0


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    results = results_by_name(root / "bench" / "results")
    page = PAGE.format(
        comparisons=comparison_table(results, "../bench/results"),
        studies=study_table(results, "../bench/results"),
        plan=accuracy_table("../bench/results", root / "bench" / "results"),
        half=half_memory_table("../bench/results", root / "bench" / "results"),
        earlier=earlier_table(earlier_results(root / "bench" / "results"), "../bench/results"),
    )
    readme = root / "README.md"
    guide = root / "docs" / "coming-from" / "conve-guide.md"
    wanted = {
        readme: replaced(readme.read_text(), headline_table(results, "bench/results")),
        root / "docs" / "benchmarks.md": page,
        guide: replaced(
            guide.read_text(),
            memory_table("../../bench/results", root / "bench" / "results"),
            MEMORY_BEGIN,
            MEMORY_END,
        ),
    }
    return write_pages(wanted, root, check="--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
