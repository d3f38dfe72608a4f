"""Run comparisons and write their dated results.

python -m bench.run --list
python -m bench.run sasrec-beauty-bce
python -m bench.run sasrec-beauty-bce --blocks 1 --modes wall --no-record

A result is recorded only from a clean checkout on a quiet machine (a load of at most 0.5). With
fewer than seven blocks it is provisional, and stays out of README.md.
"""

from __future__ import annotations

import argparse
import sys

from bench.entries import ENTRIES
from bench.harness import ENOUGH_BLOCKS, MODES, SideFailedError, measure
from bench.machine import why_not_recorded
from bench.results import markdown, write_result
from bench.table import main as write_tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="entries; none: all")
    parser.add_argument("--list", action="store_true", help="the entries, and nothing else")
    parser.add_argument(
        "--blocks", type=int, default=ENOUGH_BLOCKS, help="pairs of adjacent runs a mode"
    )
    parser.add_argument("--modes", default="wall,memory", help="of wall, cpu and memory")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a run may take")
    parser.add_argument(
        "--no-record", action="store_true", help="print the figures alone, on any machine"
    )
    options = parser.parse_args()
    modes = options.modes.split(",")
    if options.list:
        for entry in ENTRIES.values():
            labels = " | ".join(side.label for side in entry.sides.values())
            print(f"{entry.name:28s}{entry.title}: {labels}")
        return 0
    unknown = [name for name in options.names if name not in ENTRIES]
    unknown += [mode for mode in modes if mode not in MODES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; entries: {', '.join(ENTRIES)}")
    failed = 0
    for name in options.names or ENTRIES:
        if not options.no_record and (reason := why_not_recorded()) is not None:
            print(f"{name}: not measured: {reason} (--no-record prints figures)", file=sys.stderr)
            return 2
        try:
            result = measure(ENTRIES[name], modes, options.blocks, timeout=options.timeout)
        except SideFailedError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed += 1
            continue
        result["repeat"] = f'make bench ARGS="{name} --blocks {options.blocks}"'
        if options.no_record:
            print(markdown(result))
            continue
        print(write_result(result, markdown(result)))
        write_tables([])
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
