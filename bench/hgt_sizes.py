"""What large graphs cost HGT: a step at PrimeKG's size, whole and by neighbourhoods; similar nodes.

    python -m bench.hgt_sizes
    python -m bench.hgt_sizes --only jaccard --provisional

Every line is a fresh process; there is no baseline. The result goes to bench/results; a line that
fails or takes too long is left out of it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Side, SideFailedError, run_side
from bench.machine import load
from bench.results import RESULTS, circumstances, page, write_result

_PRIMEKG = "python -m bench.hgt_side --graph primekg --warm 1 --steps 1 --threads {threads}"
LINES = {
    "primekg-full": Side(
        "a step at PrimeKG's size, one pass, recompute", f"{_PRIMEKG} --mode full --recompute"
    ),
    "primekg-edges": Side(
        "a step there in four micro-batches of neighbourhoods, one message a node and relation",
        f"{_PRIMEKG} --mode edges --fan-out 1 --accumulate 4 --recompute",
    ),
    "primekg-edges-1250": Side(
        "the micro-batches with 1,250 links of each relation instead of 5,000",
        f"{_PRIMEKG} --mode edges --fan-out 1 --accumulate 4 --recompute --sample 1250",
    ),
    "primekg-edges-320": Side(
        "the micro-batches with 320 links of each relation",
        f"{_PRIMEKG} --mode edges --fan-out 1 --accumulate 4 --recompute --sample 320",
    ),
    "jaccard": Side("similar pairs of 20,000 sets", "python -m bench.jaccard_side"),
}


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(LINES), choices=tuple(LINES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    before = load()
    found = {}
    for name in options.only:
        try:  # memory as it comes: pages are not kept
            found[name] = run_side(LINES[name], options.threads, False, options.timeout)
        except (SideFailedError, subprocess.TimeoutExpired) as error:
            print(f"{name}: not measured: {error}", file=sys.stderr)
            continue
        print(f"{name}: {found[name]['epoch_seconds']:.3g} s", file=sys.stderr)
    if not found:
        return 1
    chosen = "" if len(found) == len(LINES) else "-" + "-".join(found)
    result: dict[str, Any] = {
        "name": f"hgt-sizes{chosen}",
        **circumstances(before, options.provisional),
        "threads": options.threads,
        "lines": {
            name: {"what": LINES[name].label, "command": LINES[name].command, "report": report}
            for name, report in found.items()
        },
        "repeat": "python -m bench.hgt_sizes " + " ".join(sys.argv[1:]),
    }
    print(markdown(result))
    print(write_result(result, markdown(result), results))
    return int(len(found) < len(options.only))


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    about = (
        f"{result['machine']['memory_gib']} GiB, {result['threads']} thread(s), load before "
        f"{result['load_before']}."
    )
    lines = [
        "| what | s | CPU s | peak MiB | of it above what was there before |",
        "| --- " * 5 + "|",
    ]
    for each in result["lines"].values():
        report = each["report"]
        lines.append(
            f"| {each['what']} | {report['epoch_seconds']:.3g} | {report['epoch_cpu_seconds']:.3g} "
            f"| {report['peak_memory_bytes'] / 2**20:,.0f} "
            f"| {report['bytes_above'] / 2**20:,.0f} |"
        )
    lines += ["", "What was there before: the graph, the weights and Adam's moments."]
    lines += [f"- `{each['command']}`" for each in result["lines"].values()]
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())
