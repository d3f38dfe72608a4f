"""What ``hasten plan`` predicts against what runs take, for every model at three sizes.

Each case plans a run and then trains it in a fresh process: peak memory (``VmHWM``) and seconds an
epoch. Ends with 1 if a peak is off by more than 10 % or an epoch by more than 25 %.

    python -m bench.plan_accuracy [--models sasrec conve] [--sizes 1 2 3] [--epochs 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PEAK, SECONDS = 0.10, 0.25
#: settings of the sizes: their activations are a small, a middling and the largest part
_WIDTHS, _CONVE_WIDTHS, _BATCHES = (32, 64, 128), (50, 100, 200), (128, 512, 2048)
MODELS = (
    "sasrec", "tisasrec", "bprmf", "lightgcn", "kgat", "mmgcn", "dragon", "conve", "distmult",
    "complex", "hgt",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, its number of the size, and the settings."""

    model: str
    size: int
    settings: dict[str, Any]

    @property
    def arguments(self) -> list[str]:
        return [self.model, *(f"--set={key}={value}" for key, value in self.settings.items())]


@dataclass(frozen=True)
class Outcome:
    """Predicted and measured peak memory (bytes) and seconds an epoch."""

    case: Case
    predicted_peak: int
    measured_peak: int
    predicted_seconds: float
    measured_seconds: float

    @property
    def peak_error(self) -> float:
        return self.predicted_peak / self.measured_peak - 1

    @property
    def seconds_error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def passed(self) -> bool:
        return abs(self.peak_error) <= PEAK and abs(self.seconds_error) <= SECONDS


def cases(models: Sequence[str], sizes: Sequence[int]) -> Iterator[Case]:
    """The cases of these models and sizes (1 to 3), on the built-in samples."""
    for model in models:
        for size in sizes:
            width = (_CONVE_WIDTHS if model == "conve" else _WIDTHS)[size - 1]
            settings = {"model.width": width, "training.batch_size": _BATCHES[size - 1]}
            if model == "hgt":
                settings["model.hidden"] = width
            yield Case(model, size, settings)


def measure(case: Case, epochs: int) -> Outcome:
    """Plan the case, then train it."""
    common = [*case.arguments, "--epochs", str(epochs), "--json"]
    planned = _hasten("plan", *common)
    with tempfile.TemporaryDirectory() as scratch:
        trained = _hasten("train", *common, "--quiet", "--out", f"{scratch}/run")
    return Outcome(
        case,
        planned["peak_memory_bytes"],
        trained["peak_memory_bytes"],
        planned["seconds"]["epoch"],
        trained["seconds"]["train"] / trained["epochs"],
    )


def _hasten(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "hasten", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stderr}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def line(found: Outcome) -> str:
    """A row of the table."""
    peak = f"{found.predicted_peak / 2**20:8,.0f} {found.measured_peak / 2**20:8,.0f} MiB"
    seconds = f"{found.predicted_seconds:8.2f} {found.measured_seconds:8.2f} s"
    return (
        f"{found.case.model:10} {found.case.size}  {peak} {found.peak_error:+6.1%}  "
        f"{seconds} {found.seconds_error:+6.1%}  {'' if found.passed else 'off'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=(1, 2, 3), choices=(1, 2, 3))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    print("model   size  predicted, measured peak          predicted, measured epoch")
    found = []
    for case in cases(options.models, options.sizes):
        found.append(measure(case, options.epochs))
        print(line(found[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    passed = sum(each.passed for each in found)
    print(f"{passed} of {len(found)} within {PEAK:.0%} of the peak and {SECONDS:.0%} of the epoch")
    return 0 if passed == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
