"""Write the table of the newest results into the README, between its markers.

python -m bench.table [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import ROOT
from bench.results import newest_results, with_interval

BEGIN = "<!-- benchmarks: written by make docs -->"
END = "<!-- end of benchmarks -->"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, one row a result."""
    lines = [
        "| | the other side | s an epoch, 2 threads | times faster | CPU, 1 thread "
        "| peak MiB | measured |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        if result.get("study"):
            continue
        summary = result["summary"]
        cells = [result["title"], result["sides"][0]["label"]]
        cells.append(_pair(summary, "wall", 1.0))
        cells += [
            with_interval(summary[mode]["ratio"]) if mode in summary else ""
            for mode in ("wall", "cpu")
        ]
        cells.append(_pair(summary, "memory", 2.0**-20))
        note = " (provisional)" if result.get("provisional") else ""
        cells.append(
            f"[{result['date']}](bench/results/{result['date']}-{result['name']}.md){note}"
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replaced(text: str, body: str, begin: str = BEGIN, end: str = END) -> str:
    """``text`` with ``body`` between the markers; an error where a marker is missing."""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the markers {begin} and {end} are missing")
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"


def update(path: Path, body: str, check: bool, begin: str = BEGIN, end: str = END) -> bool:
    """Put ``body`` between the markers of a file; with ``check`` only say whether it is there."""
    old = path.read_text()
    new = replaced(old, body, begin, end)
    if not check and new != old:
        path.write_text(new)
    return new == old


def _pair(summary: Mapping[str, Any], mode: str, scale: float) -> str:
    if mode not in summary:
        return ""
    sides = (summary[mode][side]["median"] * scale for side in ("baseline", "candidate"))
    return " → ".join(f"{value:.3g}" for value in sides)


def main(arguments: Sequence[str]) -> int:
    current = update(ROOT / "README.md", table(newest_results()), check="--check" in arguments)
    if "--check" in arguments and not current:
        print("the benchmark table of README.md is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
