"""Write the newest results into README.md, between its markers, and into docs/benchmarks.md.

python -m bench.table [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.entries import ENTRIES
from bench.machine import ROOT
from bench.results import (
    blocks,
    digits,
    is_provisional,
    results_by_name,
    timed_part,
    with_interval,
)
from bench.sources import is_stale

BEGIN = "<!-- benchmarks: written by make docs -->"
END = "<!-- end of benchmarks -->"

_FIGURES = (
    "seconds, 2 threads | speed-up (wall time) | blocks | speed-up (CPU time, 1 thread) | "
    "peak MiB | timed | machine | measured"
)
PAGE = """# Benchmarks

Speed and peak memory of hasten against other implementations. `make bench` repeats the
measurements; `make bench ARGS="--list"` lists them. Each row links to a dated file in
`bench/results` with the machine, the settings and the command.

How to read the tables:

- Seconds and memory are given as `baseline → hasten`. Seconds are for one epoch unless the row
  names a layer, an operation, a training step or a number of pairs. An empty cell was not measured.
- *Timed* is the part of an epoch that each side timed, `baseline, hasten`. The rest is
  extrapolated.
- The speed-up is the median ratio over blocks, which are adjacent pairs of runs. The range in
  parentheses is a distribution-free 95 % interval of the median; below six blocks it is the full
  range.
- A row with fewer than seven blocks is *provisional*. It is not in the README.
- A row is *stale* if the code that it measured has changed since, or was not recorded. Comments
  and docstrings do not count.
- Results are never replaced. Where a comparison was measured more than once, the row shows the
  newest result with enough blocks, and then the speed-ups of the others.
- Every measurement is a fresh process. Baseline and hasten alternate on the same machine, with the
  same allocator settings, number of threads and version of PyTorch.
- Wall time uses two threads, CPU time one. Peak memory is `VmHWM`, measured without the settings
  that keep freed pages.

## Against other implementations

{comparisons}

## Effect of single settings

The same run of hasten without a setting and with it.

{studies}
"""


Results = Mapping[str, Sequence[Mapping[str, Any]]]


def comparison_table(results: Results, folder: str, *, provisional: bool = True) -> str:
    """One row a comparison with another implementation. folder: where the result files are.

    provisional: with the rows that have too few blocks.
    """
    compared = {name: found for name, found in results.items() if not found[0]["study"]}
    if not provisional:
        compared = {n: found for n, found in compared.items() if not is_provisional(shown(found))}
        if results and not compared:
            return "No comparison has seven blocks yet."
    return _rows(f"| | baseline | {_FIGURES} |", compared, folder)


def study_table(results: Results, folder: str) -> str:
    """One row a setting."""
    studies = {name: found for name, found in results.items() if found[0]["study"]}
    return _rows(f"| setting | without it | {_FIGURES} |", studies, folder)


def shown(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the results of a name, newest first, the newest with enough blocks, or the newest."""
    return next((result for result in found if not is_provisional(result)), found[0])


def _rows(head: str, results: Results, folder: str) -> str:
    lines = [head, "|" + " --- |" * (head.count("|") - 1)]
    for found in results.values():
        result = shown(found)
        summary = result["summary"]
        title, baseline = result["title"], result["sides"][0]["label"]
        if entry := ENTRIES.get(result["name"]):  # its wording may be newer than the result
            title, baseline = entry.title, entry.baseline.label
        cells = [title, baseline, _pair(summary, "wall", 1.0)]
        cells += [_ratio(summary, "wall"), str(blocks(result)), _ratio(summary, "cpu")]
        cells += [_pair(summary, "memory", 2.0**-20), timed_part(result)]
        cells += [_machine(result["machine"]), _measured(result, found, folder)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) if results else "No result yet."


def _ratio(summary: Mapping[str, Any], mode: str) -> str:
    return with_interval(summary[mode]["ratio"]) if mode in summary else ""


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
        ratio = _ratio(other["summary"], "wall") or f"CPU {_ratio(other['summary'], 'cpu')}"
        if other is not result:
            others.append(f"{ratio} ([{other['date']}]({folder}/{other['file']}.md))")
    return text + (f"; also {', '.join(others)}" if others else "")


def replaced(text: str, body: str, begin: str = BEGIN, end: str = END) -> str:
    """``text`` with ``body`` between the markers; an error where a marker is missing."""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the markers {begin} and {end} are missing")
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"


def _pair(summary: Mapping[str, Any], mode: str, scale: float) -> str:
    if mode not in summary:
        return ""
    sides = (summary[mode][side]["median"] * scale for side in ("baseline", "candidate"))
    return " → ".join(digits(value) for value in sides)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    results = results_by_name(root / "bench" / "results")
    page = PAGE.format(
        comparisons=comparison_table(results, "../bench/results"),
        studies=study_table(results, "../bench/results"),
    )
    readme = root / "README.md"
    wanted = {
        readme: replaced(
            readme.read_text(), comparison_table(results, "bench/results", provisional=False)
        ),
        root / "docs" / "benchmarks.md": page,
    }
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(root)} is stale: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
