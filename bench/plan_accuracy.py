"""What ``hasten plan`` predicts against what runs take: every model at three sizes, and real data.

    python -m bench.plan_accuracy
    python -m bench.plan_accuracy --models sasrec conve --sizes 1 3 --provisional --no-record

Each case plans a run, without finished runs to correct it, and right after it trains the same run
in a fresh process: peak memory (``VmHWM``) and seconds per epoch, the median over its epochs. A
case outside the limits is measured twice more, and the median of the three errors counts. Ends with
1 if a peak is off by more than 10 % or an epoch by more than 25 %. ``--clock cpu``: one thread, and
CPU seconds on both sides, for a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.data import plain_file
from bench.machine import ROOT, load
from bench.results import RESULTS, circumstances, newest_cases, page, record_links, write_result

PEAK, SECONDS, ATTEMPTS = 0.10, 0.25, 3
CPU_CLOCK = ROOT / "bench" / "cpu_clock"
NAME, REAL, SAMPLE = "plan-accuracy", "real", "built-in sample"
#: seconds of training in a run, and its fewest and most epochs
_TRAINED, _MIN_EPOCHS, _MAX_EPOCHS = 5.0, 3, 20
#: settings of the sizes: their activations are a small, a middling and the largest part
_WIDTHS, _CONVE_WIDTHS, _BATCHES = (32, 64, 128), (50, 100, 200), (128, 512, 2048)
#: the data of each model, and the recipe for them
MODELS = {
    "sasrec": ("beauty", "best"),
    "tisasrec": ("beauty", "best"),
    "bprmf": ("tiktok", "best"),
    "lightgcn": ("tiktok", "best"),
    "kgat": ("ml-100k-facts", "best"),
    "mmgcn": ("tiktok", "best"),
    "dragon": ("tiktok", "best"),
    "freedom": ("tiktok", None),
    "bm3": ("tiktok", None),
    "conve": ("umls", "best"),
    "distmult": ("umls", None),
    "complex": ("umls", "best"),
    "tucker": ("umls", None),
    "rotate": ("umls", None),
    "hgt": ("redda-k", "best"),
    "ease": ("tiktok", None),
    "slim": ("tiktok", None),
    "itemknn": ("tiktok", None),
    "gfcf": ("tiktok", None),
    "pop": ("beauty", None),
    "degree": ("umls", None),
}
#: models without steps: they have no settings, so there is one size and no epoch
FITTED = ("ease", "slim", "itemknn", "gfcf", "pop", "degree")


@dataclass(frozen=True)
class Case:
    """A model, its size (1 to 3 on the built-in sample, or real data), and the settings."""

    model: str
    size: str
    data: str = SAMPLE
    recipe: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, threads: int) -> list[str]:
        """Of ``hasten plan`` and ``hasten train``. Raises FileNotFoundError without the data."""
        found = [self.model]
        if self.data != SAMPLE:
            try:
                path = plain_file(self.data)
            except (SystemExit, OSError) as error:
                raise FileNotFoundError(f"{self.data} is absent") from error
            if not path.exists():
                raise FileNotFoundError(f"{self.data} is absent")
            found.append(str(path))
        found += ["--recipe", f"{self.data}/{self.recipe}"] if self.recipe else []
        found += [f"--set={key}={value}" for key, value in self.settings.items()]
        return [*found, "--threads", str(threads), "--json"]


def cases(models: Sequence[str], sizes: Sequence[str]) -> Iterator[Case]:
    """The cases of these models and sizes."""
    for model in models:
        for size in sizes:
            if size == REAL:
                yield Case(model, size, *MODELS[model])
            elif model not in FITTED:
                number = int(size) - 1
                width = (_CONVE_WIDTHS if model == "conve" else _WIDTHS)[number]
                settings = {"model.width": width, "training.batch_size": _BATCHES[number]}
                if model == "hgt":
                    settings["model.hidden"] = width
                yield Case(model, size, settings=settings)
            elif size == "1":
                yield Case(model, size)


def measure(case: Case, threads: int) -> dict[str, Any]:
    """Attempts of a case until one is within the limits, and the median errors over them."""
    attempts: list[dict[str, float]] = []
    arguments = case.arguments(threads)
    while len(attempts) < ATTEMPTS:
        attempts.append(attempt(arguments, threads))
        if len(attempts) == 1 and passes(summarize(attempts)):
            break
    settings = dict(case.settings) or {"recipe": case.recipe or "defaults"}
    known = {"model": case.model, "size": case.size, "data": case.data, "settings": settings}
    return {**known, **summarize(attempts), "attempts": attempts}


def attempt(arguments: Sequence[str], threads: int) -> dict[str, float]:
    """Plan a run, then train it for some epochs."""
    planned = run_hasten(threads, "plan", *arguments, "--runs", "off")
    predicted = planned["seconds"]["epoch"]
    count = int(min(_MAX_EPOCHS, max(_MIN_EPOCHS, _TRAINED / predicted))) if predicted else 1
    epochs = ["--epochs", str(count)] if predicted else []
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        trained = run_hasten(threads, "train", *arguments, *epochs, "--quiet", "--out", str(run))
        records = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    seconds = [record["seconds"] for record in records if record["kind"] == "train"]
    return {
        "predicted_peak": planned["peak_memory_bytes"],
        "measured_peak": trained["peak_memory_bytes"],
        "predicted_seconds": predicted,
        "measured_seconds": median(seconds),
        "epochs": count,
    }


def run_hasten(threads: int, *arguments: str) -> dict[str, Any]:
    """The JSON object that a command of hasten prints."""
    command = [sys.executable, "-m", "hasten", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{ended.stderr}{ended.stdout}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def summarize(attempts: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Of peak and seconds the attempt with the median error; no error where nothing is trained."""
    found: dict[str, Any] = {}
    for name in ("peak", "seconds"):
        pairs = [(each[f"predicted_{name}"], each[f"measured_{name}"]) for each in attempts]
        errors = [(p / m - 1 if p and m else None, p, m) for p, m in pairs]
        error, predicted, measured = sorted(errors)[len(errors) // 2]
        found[name] = {"predicted": predicted, "measured": measured, "error": error}
    return found


def passes(found: Mapping[str, Any]) -> bool:
    """Whether the errors of a case are within the limits."""
    limits = {"peak": PEAK, "seconds": SECONDS}
    return all(abs(found[name]["error"] or 0) <= limit for name, limit in limits.items())


def row(case: Mapping[str, Any]) -> str:
    """A row of the table."""
    peak, seconds, count = case["peak"], case["seconds"], len(case["attempts"])
    settings = ", ".join(f"{k.partition('.')[2] or k} {v}" for k, v in case["settings"].items())
    cells = [case["model"], case["data"], settings]
    cells += [f"{peak[key] / 2**20:,.0f}" for key in ("predicted", "measured")]
    cells.append(f"{peak['error']:+.1%}")
    if seconds["error"] is None:
        cells += ["", "", ""]
    else:
        cells += [f"{seconds[key]:.3g}" for key in ("predicted", "measured")]
        cells.append(f"{seconds['error']:+.1%}")
    return f"| {' | '.join(cells)} | {count} | {'yes' if passes(case) else '**no**'} |"


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cases as a Markdown table."""
    head = (
        "| model | data | settings | predicted MiB | peak MiB | error | predicted s | s per epoch "
        "| error | attempts | within |"
    )
    return [head, "|" + " --- |" * (head.count("|") - 1), *map(row, found)]


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    """How many cases are within the limits."""
    passed = sum(map(passes, found))
    return (
        f"{passed} of {len(found)} cases are within {PEAK:.0%} of the peak and {SECONDS:.0%} of "
        "the seconds per epoch."
    )


def accuracy_table(folder: str, results: Path = RESULTS) -> str:
    """The newest record of each case for a page. folder: where the result files are."""
    found = newest_cases(NAME, results, list(MODELS), "size")
    links = record_links(found, folder)
    return (
        "\n".join([f"{summary(found)} {links}", "", *table(found)]) if found else "No result yet."
    )


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=tuple(MODELS))
    parser.add_argument("--sizes", nargs="+", default=["1", "2", "3", REAL])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    parser.add_argument("--no-record", action="store_true", help="print the table only")
    options = parser.parse_args(arguments)
    if options.clock == "cpu":
        options.threads = 1
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(CPU_CLOCK), os.environ.get("PYTHONPATH")))
        )
    before, found, skipped = load(), [], []
    for case in cases(options.models, options.sizes):
        try:
            found.append(measure(case, options.threads))
            print(row(found[-1]), file=sys.stderr, flush=True)
        except FileNotFoundError as error:
            skipped.append({"model": case.model, "size": case.size, "reason": str(error)})
            print(f"{case.model} {case.size}: {error}", file=sys.stderr, flush=True)
    result = {
        "name": NAME,
        **circumstances(before, options.provisional),
        "settings": {"threads": options.threads, "clock": options.clock},
        "cases": found,
        "skipped": skipped,
        "repeat": "python -m bench.plan_accuracy " + " ".join(sys.argv[1:]),
    }
    how = f"{options.threads} thread(s), {options.clock} seconds"
    about = f"CPU, {how}, runs of {_MIN_EPOCHS} to {_MAX_EPOCHS} epochs."
    left_out = [f"- {s['model']}, {s['size']}: skipped, {s['reason']}" for s in skipped]
    text = page(result, about, [*table(found), "", summary(found), *left_out])
    print(text)
    if not options.no_record:
        print(write_result(result, text, results))
    return 0 if found and all(map(passes, found)) else 1


if __name__ == "__main__":
    sys.exit(main())
