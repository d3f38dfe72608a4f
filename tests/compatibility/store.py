"""Store run folders of the present version, and what it answers for them, as test data.

    python -m tests.compatibility.store

Run this once for a release, on the commit that is released: ``test_old_runs`` then holds every
later version to ``runs-VERSION.tar.xz`` and ``expected-VERSION.json``.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hasten
from hasten.inference.predict import predict
from hasten.inference.recommend import recommend
from hasten.loaded_run import evaluate
from hasten.run import resume
from tests.contract import cases

HERE = Path(__file__).parent
#: the first case of each model, and of the parts with files or tensors of their own
STORED = {
    **{case.model: case for case in reversed(cases.CASES)},
    **{case.label: case for case in cases.CASES if case.label in ("sasrec-mhc", "complex-sampled")},
}


def answers_of(run: Path) -> dict[str, list[Any]]:
    """Recommendations of two users, or predictions of one query, by column."""
    loaded = hasten.load(run, device="cpu")
    if hasattr(loaded.dataset, "relations"):
        relation = loaded.dataset.relations.labels[0]
        table = predict(loaded, [{"head": 0, "relation": relation}], topk=3).to_table()
    else:
        table = recommend(loaded, users=[1, 2], topk=3).to_table()
    found: dict[str, list[Any]] = table.to_pydict()
    return found


def store(case: cases.ModelCase, run: Path) -> dict[str, Any]:
    """Train one run for an epoch, and return what this version says of it."""
    common = {"seed": 3, "threads": 1, "device": "cpu", "out": str(run), "quiet": True}
    # the files of a case lie in the current folder, so that the run folder names no other one
    settings = json.loads(json.dumps(dict(case.settings)).replace(f"{Path.cwd()}{os.sep}", ""))
    epochs = {"training.epochs": 1} if case.trains else {}
    hasten.train(case.model, case.data, settings={**settings, **epochs}, **common)
    found = evaluate(run, device="cpu")
    changes = {"training.epochs": 3} if case.trains else {}
    with TemporaryDirectory() as copy:
        resumed = resume(run, out=Path(copy, "run"), changes=changes, quiet=True)
    for name in (*run.glob("events.out.tfevents.*"), *run.glob(".lock")):  # they name the machine
        name.unlink()
    return {
        "model": case.model,
        "trains": case.trains,
        "evaluated": {name: found[name] for name in ("valid", "test", "protocol")},
        "answers": answers_of(run),
        "resumed": {"epochs": resumed.epochs, "valid": resumed.valid, "test": resumed.test},
    }


def main(folder: Path = HERE) -> int:
    archive = folder / f"runs-{hasten.__version__}.tar.xz"
    if archive.exists():
        sys.exit(f"{archive.name} exists: the runs of a release are stored once")
    with TemporaryDirectory() as place:
        runs = Path(place, "runs")
        os.chdir(Path(cases.__file__).parent)
        expected = {label: store(case, runs / label) for label, case in STORED.items()}
        with tarfile.open(archive, "w:xz") as file:
            file.add(runs, "runs")
    text = json.dumps(expected, indent=1) + "\n"
    archive.with_name(f"expected-{hasten.__version__}.json").write_text(text, encoding="utf-8")
    print(f"{archive.name}: {len(expected)} runs, {archive.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
