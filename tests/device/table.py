"""Count every model on a simulated CUDA device, into counts.json and the table of docs/devices.md.

python -m tests.device.table [--render | --check]

``--render`` only writes the table from the file; ``--check`` only compares them. The file holds,
for each stage of a model, kernels, copies to the device, copies to the host and synchronizations:
"before", when they were first counted, and "now", which no test may exceed. "differing" lists the
phases whose steps are not identical.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.table import replaced
from tests.contract.cases import CASES
from tests.device.measure import differing, measure
from tests.device.simulation import simulated

COUNTS = Path(__file__).with_name("counts.json")
PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
MARKERS = "<!-- counts -->", "<!-- end of counts -->"

#: kernels, copies to the device, copies to the host, synchronizations
Figures = Sequence[int]
Stages = Mapping[str, Figures]


def read() -> dict[str, dict[str, dict[str, list[int]]]]:
    """before, now: label of the contract suite -> stage -> figures; differing: label -> phases."""
    found: dict[str, dict[str, dict[str, list[int]]]] = json.loads(COUNTS.read_text())
    return found


def measured() -> tuple[dict[str, dict[str, list[int]]], dict[str, list[str]]]:
    """The figures of all models, and the phases whose steps are not identical."""
    figures, unlike = {}, {}
    for case in CASES:
        with simulated("cuda") as device:
            found = measure(case, device)
        figures[case.label] = {
            name: list(each.figures().values())
            for name, each in found.items()
            if not name.endswith("next")
        }
        unlike[case.label] = sorted(differing(found))
    return figures, unlike


def write(counts: Mapping[str, Mapping[str, object]]) -> None:
    """One line for each model, so that a change shows as such."""
    parts = []
    for part, labels in counts.items():
        lines = [f"{json.dumps(label)}: {json.dumps(value)}" for label, value in labels.items()]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    COUNTS.write_text("{" + ",\n".join(parts) + "}\n")


def table(counts: Mapping[str, Mapping[str, Stages]]) -> str:
    """A row for each phase of each model; a figure that has changed stands as ``before → now``."""
    lines = [
        "| model, as in `tests/contract/cases.py` | step: kernels | copies | synchronizations "
        "| identical steps | epoch's begin and end: kernels | synchronizations "
        "| evaluation: kernels | copies | synchronizations |",
        "| --- " * 10 + "|",
    ]
    for label, now in counts["now"].items():
        before = counts["before"].get(label, now)
        phases = [stage.removesuffix("step") for stage in now if stage.endswith("step")]
        ranked = _cells(before, now, ["evaluation"], (0, 1, 2))
        for number, phase in enumerate(phases or [None]):
            name = label if not phase else f"{label}, {phase.removesuffix('.')}"
            cells = [""] * 6
            if phase is not None:
                step = _cells(before, now, [f"{phase}step"], (0, 1, 2))
                hooks = _cells(before, now, [f"{phase}begin", f"{phase}end"], (0, 2))
                alike = "no" if phase in counts["differing"][label] else "yes"
                cells = [*step, alike, *hooks]
            lines.append(f"| {' | '.join([name, *cells, *(ranked if not number else [''] * 3)])} |")
    return "\n".join(lines)


def _cells(before: Stages, now: Stages, stages: Sequence[str], columns: Sequence[int]) -> list[str]:
    """Kernels, copies in both directions, synchronizations: the sums over these stages."""
    cells = []
    for column in columns:
        one, other = (_sums(part, stages)[column] for part in (before, now))
        cells.append(f"{other:,}" if one == other else f"{one:,} → {other:,}")
    return cells


def _sums(part: Stages, stages: Sequence[str]) -> tuple[int, int, int]:
    found = [part.get(stage, (0, 0, 0, 0)) for stage in stages]
    kernels, to_device, to_host, waits = (sum(column) for column in zip(*found, strict=True))
    return kernels, to_device + to_host, waits


def main(arguments: Sequence[str]) -> int:
    if not {"--check", "--render"} & set(arguments):
        now, differing_now = measured()
        before = read()["before"] if COUNTS.exists() else {}
        # a new model begins with its first figures
        write({"before": {**now, **before}, "now": now, "differing": differing_now})
    page = replaced(PAGE.read_text(), table(read()), *MARKERS)
    if page == PAGE.read_text():
        return 0
    if "--check" in arguments:
        print("docs/devices.md is stale: run python -m tests.device.table", file=sys.stderr)
        return 1
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
