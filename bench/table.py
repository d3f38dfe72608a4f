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
from bench.results import digits, newest_results, with_interval

BEGIN = "<!-- benchmarks: written by make docs -->"
END = "<!-- end of benchmarks -->"

_FIGURES = (
    "seconds, 2 threads | speed-up (wall time) | speed-up (CPU time, 1 thread) | "
    "peak MiB | measured"
)
PAGE = """# Benchmarks

Speed and peak memory of hasten against other implementations. `make bench` repeats the
measurements; `make bench ARGS="--list"` lists them. Each row links to a dated file in
`bench/results` with the machine, the settings and the command.

How to read the tables:

- Seconds and memory are given as `baseline → hasten`. Seconds are for one epoch unless the row
  names a layer, an operation, a training step or a number of pairs. An empty cell was not measured.
- Epochs of KGAT and LightGCN on Amazon-book, of MMGCN and DRAGON, and of some baselines, are
  extrapolated from a few steps; the linked file says from how many.
- The speed-up is the median ratio over adjacent pairs of runs. The range in parentheses
  is a distribution-free 95 % interval of the median; below six pairs it is the full range.
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


def comparison_table(results: Sequence[Mapping[str, Any]], folder: str) -> str:
    """One row a comparison with another implementation. folder: where the result files are."""
    lines = [
        f"| | baseline | {_FIGURES} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return _rows(lines, [r for r in results if not r["study"]], folder)


def study_table(results: Sequence[Mapping[str, Any]], folder: str) -> str:
    """One row a setting."""
    lines = [
        f"| setting | without it | {_FIGURES} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return _rows(lines, [r for r in results if r["study"]], folder)


def _rows(head: list[str], results: Sequence[Mapping[str, Any]], folder: str) -> str:
    lines = list(head)
    for result in results:
        summary = result["summary"]
        title, baseline = result["title"], result["sides"][0]["label"]
        if entry := ENTRIES.get(result["name"]):  # its wording may be newer than the result
            title, baseline = entry.title, entry.baseline.label
        cells = [title, baseline, _pair(summary, "wall", 1.0)]
        cells += [
            with_interval(summary[mode]["ratio"]) if mode in summary else ""
            for mode in ("wall", "cpu")
        ]
        cells.append(_pair(summary, "memory", 2.0**-20))
        note = " (provisional)" if result["provisional"] else ""
        date = result["date"]
        cells.append(f"[{date}]({folder}/{date}-{result['name']}.md){note}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > len(head) else "No result yet."


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
    results = newest_results(root / "bench" / "results")
    page = PAGE.format(
        comparisons=comparison_table(results, "../bench/results"),
        studies=study_table(results, "../bench/results"),
    )
    readme = root / "README.md"
    wanted = {
        readme: replaced(readme.read_text(), comparison_table(results, "bench/results")),
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
