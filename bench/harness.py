"""Side-by-side runs: every measurement in a fresh process, sides interleaved (A B C, C B A).

A side is a command that prints one JSON line of :mod:`bench.report` last. Three kinds of runs:

- ``wall``: two threads, wall seconds an epoch;
- ``cpu``: one thread, CPU seconds an epoch (what a busy machine disturbs least);
- ``memory``: two threads, the peak resident size, without the settings that keep pages.

Each block runs all sides next to each other, in alternating order; ratios are taken inside the
blocks, so that a drift of the machine cancels.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import KEEP_PAGES, ROOT, commit, describe_machine, load
from bench.sources import TRACE, called_functions, describe_sources
from bench.statistics import spread

#: blocks that a figure needs: their range is an interval of the median of more than 95 %
ENOUGH_BLOCKS = 7

#: the role of the candidate among the sides of an entry
HASTEN = "hasten"

MODES: dict[str, tuple[int, str]] = {
    "wall": (2, "epoch_seconds"),
    "cpu": (1, "epoch_cpu_seconds"),
    "memory": (2, "peak_memory_bytes"),
}


@dataclass(frozen=True)
class Side:
    """One implementation: a label for people and a command with ``{threads}`` to fill in.

    The command starts with ``python`` for hasten's own interpreter, or with a path relative to the
    repository. for_memory: added where only the peak memory is wanted, to have it sooner.
    """

    label: str
    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    for_memory: str = ""

    def as_run(self, mode: str) -> Side:
        """The side as it runs in this mode."""
        return (
            replace(self, command=f"{self.command} {self.for_memory}") if mode == "memory" else self
        )


@dataclass(frozen=True)
class Entry:
    """A comparison of ``candidate`` with other implementations of the same work.

    work: what all sides do, for the reader of the table. published: what people run, a package or
    the authors' code as it comes. plain: the best plain PyTorch. without: hasten without one of its
    settings, in a table of its own. column: exact, bf16 or approximate.
    """

    name: str
    title: str
    work: str
    candidate: Side
    published: Side | None = None
    plain: Side | None = None
    without: Side | None = None
    column: str = "exact"
    keep_pages: bool = True

    @property
    def sides(self) -> dict[str, Side]:
        """The sides by their role, hasten last."""
        others = {"published": self.published, "plain": self.plain, "without": self.without}
        return {role: side for role, side in others.items() if side} | {HASTEN: self.candidate}


class SideFailedError(RuntimeError):
    """A side's process ended without a report."""


def run_side(
    side: Side, threads: int, keep_pages: bool, timeout: float, functions: Path | None = None
) -> dict[str, Any]:
    """One fresh process of a side; returns the report it printed.

    functions: a folder for the functions that it calls, which takes it longer.
    """
    program, *arguments = shlex.split(side.command.format(threads=threads))
    if program == "python":
        program = sys.executable
    elif not Path(program).is_absolute():
        program = str(ROOT / program)
    paths = (TRACE, ROOT, ROOT / "src")
    environment = {name: value for name, value in os.environ.items() if name not in KEEP_PAGES}
    environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment |= KEEP_PAGES if keep_pages else {"HASTEN_ALLOCATOR": "off"}
    environment |= side.environment
    if functions is not None:
        environment["BENCH_FUNCTIONS"] = str(functions)
    done = subprocess.run(
        [program, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SideFailedError(
            f"{side.label} ended with {done.returncode} and no report:\n"
            + "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        )
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def sources_of(entry: Entry, timeout: float = 3600) -> dict[str, Any]:
    """The functions that the timed parts of an entry's sides call, from a run of each side."""
    called: set[str] = set()
    for side in entry.sides.values():
        with tempfile.TemporaryDirectory() as folder:
            run_side(side.as_run("memory"), 2, False, timeout, Path(folder))
            found = called_functions(Path(folder))
        if not found:
            raise SideFailedError(f"{side.label} called no function of ours while it was timed")
        called |= found
    return describe_sources(called)


def measure(
    entry: Entry,
    modes: Sequence[str],
    blocks: int,
    *,
    timeout: float = 3600,
    run: Callable[[Side, int, bool, float], dict[str, Any]] = run_side,
    sources: Callable[[Entry], dict[str, Any]] = sources_of,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> dict[str, Any]:
    """All runs of an entry and their summary, as it goes into the result file.

    Provisional with fewer than ENOUGH_BLOCKS blocks.
    """
    runs: list[dict[str, Any]] = []
    started_load = load()
    code = sources(entry)
    for mode in modes:
        threads, quantity = MODES[mode]
        for block in range(1 if mode == "memory" else blocks):
            sides = list(entry.sides.items())
            for role, side in sides if block % 2 == 0 else reversed(sides):
                keep = entry.keep_pages and mode != "memory"
                report = run(side.as_run(mode), threads, keep, timeout)
                runs.append({"mode": mode, "block": block, "side": role, "report": report})
                say(f"{entry.name} {mode} {block + 1} {side.label}: {report[quantity]:.4g}")
    return {
        "name": entry.name,
        "title": entry.title,
        "work": entry.work,
        "column": entry.column,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine() | {"load_before": started_load},
        "commit": commit(),
        "provisional": blocks < ENOUGH_BLOCKS,
        "sources": code,
        "sides": {
            role: {
                "label": side.label,
                "command": side.command,
                "environment": dict(side.environment),
            }
            for role, side in entry.sides.items()
        },
        "allocator": KEEP_PAGES if entry.keep_pages else {},
        "summary": {mode: summarise(runs, mode) for mode in modes},
        "runs": runs,
    }


def summarise(runs: Sequence[Mapping[str, Any]], mode: str) -> dict[str, Any]:
    """Spread of each side, and of its ratio to hasten block by block."""
    quantity = MODES[mode][1]
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        if run["mode"] == mode:
            side = values.setdefault(run["side"], {})
            side[run["block"]] = float(run["report"][quantity])
    ours = values[HASTEN]
    return {
        "quantity": quantity,
        "sides": {role: spread(list(found.values())) for role, found in values.items()},
        "ratios": {
            role: spread([found[block] / ours[block] for block in sorted(found)])
            for role, found in values.items()
            if role != HASTEN
        },
    }
