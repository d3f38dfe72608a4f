"""Train every model in half of its peak memory, and compare the losses.

    python -m bench.half_memory
    python -m bench.half_memory --models sasrec conve --provisional --no-record

Each case trains without a budget and then with ``--memory-budget`` of half the peak, each in a
fresh process (``VmHWM``), on a made sample, without dropout and with a batch whose activations are
most of the memory. Ends with 1 if a run is refused or exceeds its budget, or a loss differs by
more than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import load
from bench.plan_accuracy import run_hasten
from bench.results import RESULTS, circumstances, newest_cases, page, record_links, write_result
from hasten.data.samples.files import write_sample

NAME, LARGEST = "half-memory", 1e-4
#: ends of the names of loss terms; HGT's are link and contrast
_LOSSES = ("loss", "link", "contrast")
_PLAIN = {"model.dropout": 0}


@dataclass(frozen=True)
class Case:
    """A sample, its sizes, and settings of the model and the training."""

    sample: str
    sizes: Mapping[str, int]
    settings: Mapping[str, Any] = field(default_factory=dict)


_SEQUENCES = {"users": 2400, "items": 400, "events": 48_000}
_LIBRARY = {"users": 400, "items": 400, "events": 32_000}
_GALLERY = {"users": 800, "items": 800, "events": 64_000}
_TRIPLES = {"families": 96}
_BATCH = {"training.batch_size": 65_536}
CASES = {
    "sasrec": Case("sequences", _SEQUENCES, {
        "model.width": 128, "training.batch_size": 4096, **_PLAIN,
    }),
    "tisasrec": Case("sittings", {"users": 3600, "items": 400, "events": 72_000}, {
        "model.width": 128, "training.batch_size": 4096, **_PLAIN,
    }),
    "bprmf": Case("library", _LIBRARY, {"model.width": 1024, **_BATCH}),
    "lightgcn": Case("library", _LIBRARY, {"model.width": 1024, **_BATCH}),
    "kgat": Case("library", _LIBRARY, {"model.width": 1024, **_BATCH, **_PLAIN}),
    "mmgcn": Case("gallery", _GALLERY, {"model.width": 512, "model.ids": "trainable", **_BATCH}),
    "dragon": Case("gallery", _GALLERY, {"model.width": 256, **_BATCH}),
    "conve": Case("families", {"families": 384}, {
        "training.batch_size": 16_384,
        **{f"model.{name}_dropout": 0 for name in ("input", "feature", "hidden")},
    }),
    "distmult": Case("families", _TRIPLES, {"model.width": 4096, **_BATCH, **_PLAIN}),
    "complex": Case("families", _TRIPLES, {"model.width": 4096, **_BATCH, **_PLAIN}),
    "hgt": Case("medicine", {"genes": 5760}, {
        "model.width": 64, "model.hidden": 64, "model.negatives": 5760, "model.steps_per_epoch": 2,
        **_PLAIN,
    }),
}  # fmt: skip


def measure(model: str, epochs: int, threads: int, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Train without a budget, and in half of the peak. settings: further ones."""
    case = CASES[model]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = write_sample(case.sample, folder, **case.sizes)["data"]
        sets = [f"--set={key}={value}" for key, value in case.settings.items()]
        arguments = ["train", model, data, *sets, *(f"--set={each}" for each in settings)]
        arguments += ["--epochs", str(epochs), "--threads", str(threads), "--json", "--quiet"]
        arguments.append("--set=evaluation.test=false")
        free = run_hasten(threads, *arguments, "--out", str(folder / "free"))
        budget = free["peak_memory_bytes"] // 2
        found = {
            "model": model,
            "data": {case.sample: case.sizes},
            "settings": case.settings,
            "free": free["peak_memory_bytes"],
            "budget": budget,
        }
        try:
            held = run_hasten(
                threads, *arguments, "--memory-budget", str(budget), "--out", str(folder / "held")
            )
        except RuntimeError as error:
            return {**found, "refused": str(error).splitlines()[-1]}
        losses = zip(_losses(folder / "free"), _losses(folder / "held"), strict=True)
        return {
            **found,
            "held": held["peak_memory_bytes"],
            "predicted": held["plan"]["predicted"]["peak_memory_bytes"],
            "chosen": held["plan"]["chosen"],
            "retreats": len(held["effective"]["retreats"] or ()),
            "difference": max(abs(ours / loss - 1) for loss, ours in losses),
            "slower": held["seconds"]["train"] / free["seconds"]["train"],
        }


def _losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        value
        for record in records if record["kind"] == "train"
        for key, value in sorted(record.items()) if key.endswith(_LOSSES)
    ]  # fmt: skip


def passes(found: Mapping[str, Any]) -> bool:
    """Whether the run kept to its budget, with the same losses."""
    return (
        "refused" not in found
        and found["held"] <= found["budget"]
        and found["difference"] <= LARGEST
    )


def row(found: Mapping[str, Any]) -> str:
    """A row of the table."""
    mib = [f"{found[key] / 2**20:,.0f}" if key in found else "" for key in _MEMORY]
    settings = ", ".join(f"{k.partition('.')[2]} {v}" for k, v in found["settings"].items())
    cells = [found["model"], settings, *mib]
    if "refused" in found:
        cells += [found["refused"], "", "", ""]
    else:
        chosen = ", ".join(f"{name} {value}" for name, value in found["chosen"].items())
        cells += [chosen, str(found["retreats"]), f"{found['difference']:.1e}"]
        cells.append(f"{found['slower']:.2f}")
    return f"| {' | '.join(cells)} | {'yes' if passes(found) else '**no**'} |"


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cases as a Markdown table."""
    return [_HEAD, "|" + " --- |" * (_HEAD.count("|") - 1), *map(row, found)]


def memory_table(folder: str, results: Path = RESULTS) -> str:
    """The newest record of each case for a page. folder: where the result files are."""
    found = newest_cases(NAME, results, list(CASES))
    passed = f"{sum(map(passes, found))} of {len(CASES)} models pass."
    links = record_links(found, folder)
    return "\n".join([f"{passed} {links}", "", *table(found)]) if found else "No result yet."


_MEMORY = ("free", "budget", "predicted", "held")
_HEAD = (
    "| model | settings | peak MiB | budget | predicted | peak within it | chosen | retreats | "
    "largest difference of a loss | times the seconds | passed |"
)


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=tuple(CASES))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", nargs="+", default=[], help="further settings, key=value")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    parser.add_argument("--no-record", action="store_true", help="print the table only")
    options = parser.parse_args(arguments)
    before, found = load(), []
    for model in options.models:
        found.append(measure(model, options.epochs, options.threads, options.set))
        print(row(found[-1]), file=sys.stderr, flush=True)
    result = {
        "name": NAME,
        **circumstances(before, options.provisional),
        "settings": {"threads": options.threads, "epochs": options.epochs, "set": options.set},
        "cases": found,
        "repeat": "python -m bench.half_memory " + " ".join(sys.argv[1:]),
    }
    about = f"CPU, {options.threads} thread(s), runs of {options.epochs} epochs."
    text = page(result, about, table(found))
    print(text)
    if not options.no_record:
        print(write_result(result, text, results))
    return 0 if all(map(passes, found)) else 1


if __name__ == "__main__":
    sys.exit(main())
