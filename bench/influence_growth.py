"""Seconds of TracIn against the number of training triples: captum, plain PyTorch and hasten.

    python -m bench.influence_growth
    python -m bench.influence_growth --data umls --rounds 1 --provisional

The scores of 20 tests of FB15k-237 with growing parts of its training triples, each in a fresh
process, the sides next to each other (:mod:`bench.influence_side`). A side ends where its next size
would take more than ``--limit`` seconds, judged by its last. The result goes to bench/results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Side, run_side
from bench.machine import load
from bench.results import RESULTS, circumstances, page, with_interval, write_result
from bench.statistics import spread

LABELS = {"captum": "captum 0.9.0", "plain": "plain PyTorch, vmap of grad", "hasten": "hasten"}
#: 0: all of them
SIZES = (200, 600, 2000, 6000, 20_000, 60_000, 0)


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="fb15k-237")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="0: all")
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60, help="seconds a measurement may take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    before = load()
    result = {
        "name": f"influence-growth-{options.data}",
        "tests": options.tests,
        "threads": options.threads,
        "labels": LABELS,
        "lines": measure(options),
        **circumstances(before, options.provisional),
        "repeat": "python -m bench.influence_growth " + " ".join(sys.argv[1:]),
    }
    print(markdown(result))
    print(write_result(result, markdown(result), results))
    return 0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each size: the triples, and the seconds of every side that got as far."""
    lines: list[dict[str, Any]] = []
    running = list(LABELS)
    for size in options.sizes:
        seconds: dict[str, list[float]] = {how: [] for how in running}
        for number in range(options.rounds):
            for how in running if number % 2 == 0 else reversed(running):
                command = (
                    f"python -m bench.influence_side --how {how} --data {options.data} "
                    f"--train {size} --tests {options.tests} --threads {{threads}}"
                )
                report = run_side(Side(LABELS[how], command), options.threads, True, 3600)
                seconds[how].append(report["epoch_seconds"])
                triples = report["examples_per_epoch"] // options.tests
                print(f"{triples} {how}: {seconds[how][-1]:.3g} s", file=sys.stderr)
        found = {how: spread(values) for how, values in seconds.items()}
        lines.append({"triples": triples, "seconds": found})
        after = options.sizes[len(lines) : len(lines) + 1]
        if after and after[0]:
            growth = after[0] / triples
            running = [how for how in running if found[how]["median"] * growth <= options.limit]
        else:  # all triples: hasten's alone
            running = ["hasten"]
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    about = (
        f"Wall seconds of the TracIn scores of {result['tests']} tests, ConvE with D 200, all "
        f"layers, one checkpoint, {result['threads']} thread(s), load before "
        f"{result['load_before']}: median and range of the rounds. A side ends where its next size "
        "would take too long."
    )
    lines = [f"| training triples | {' | '.join(result['labels'].values())} |", "| --- " * 4 + "|"]
    for line in result["lines"]:
        cells = [
            with_interval(line["seconds"][how]) if how in line["seconds"] else ""
            for how in result["labels"]
        ]
        lines.append(f"| {line['triples']:,} | {' | '.join(cells)} |")
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())
