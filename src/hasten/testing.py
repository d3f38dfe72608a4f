"""Contract tests for models of other packages: ``check_model("name")`` runs all of them.

Each check trains a small model in a temporary folder and raises AssertionError with what differs.
No test framework is needed; in pytest, call the checks from test functions.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hasten.api import Result, train
from hasten.data.tables import KnowledgeGraph
from hasten.inference.predict import predict
from hasten.loaded_run import evaluate, load_run
from hasten.run import resume
from hasten.runs.checkpoint import read_checkpoint

#: relative and absolute, for runs that sum the same numbers in another order (float32)
TOLERANCE = 1e-3
#: values that differ between identical runs
_VOLATILE = ("time", "seconds", "examples_per_second")


def check_model(
    name: str,
    data: object | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    without_dropout: Mapping[str, Any] | None = None,
    devices: bool = True,
) -> None:
    """Run all checks on a model that hasten can find by its name.

    data: as for ``hasten.train``; None: the model's built-in sample. settings: configuration keys
    that make the model small. without_dropout: keys that switch off all randomness that depends on
    the layout of a batch; needed for the checks of micro-batches and processes. devices: also train
    in two processes.
    """
    small = {"training.epochs": 2, "checkpoint.keep": 2, **(settings or {})}
    with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        folder = Path(scratch)
        whole = _train(name, data, small, folder / "whole")
        check_determinism(name, data, small, folder)
        check_resuming(name, data, small, folder)
        check_inference(whole)
        check_layouts(name, data, {**small, **(without_dropout or {})}, folder, devices=devices)
        _train(name, data, {**small, "training.precision": "bf16"}, folder / "bf16")


def check_determinism(name: str, data: Any, settings: Mapping[str, Any], folder: Path) -> None:
    """The same seed gives the same weights and the same losses."""
    _train(name, data, settings, folder / "again")
    assert_same(folder / "whole", folder / "again")
    assert training_log(folder / "whole") == training_log(folder / "again"), "other losses"


def check_resuming(name: str, data: Any, settings: Mapping[str, Any], folder: Path) -> None:
    """A run that is resumed after its first epoch equals an uninterrupted one."""
    _train(name, data, {**settings, "training.epochs": 1}, folder / "part")
    resume(folder / "part", changes={"training.epochs": settings["training.epochs"]}, quiet=True)
    assert_same(folder / "whole", folder / "part")


def check_inference(result: Result) -> None:
    """The run folder alone gives the reported metrics, and recommendations or predictions."""
    test_metrics = evaluate(result.path)["test"]
    assert test_metrics == result.metrics, (
        f"evaluate gives {test_metrics}, the run reported {result.metrics}"
    )
    loaded = load_run(result.path)
    dataset = loaded.dataset
    if isinstance(dataset, KnowledgeGraph):
        head, relation = (
            labels.take([0])[0].as_py()
            for labels in (dataset.entities.labels, dataset.relations.labels)
        )
        assert len(predict(loaded, [{"head": head, "relation": relation}], topk=3)), (
            "predict gives nothing"
        )
    else:
        user = dataset.users.labels.take([0])[0].as_py()
        assert len(result.recommend(users=[user], topk=3)), "recommend gives nothing"


def check_layouts(
    name: str, data: Any, settings: Mapping[str, Any], folder: Path, *, devices: bool = True
) -> None:
    """Micro-batches and two processes give the same weights, up to rounding."""
    one = {**settings, "training.epochs": 1}
    _train(name, data, one, folder / "one")
    _train(name, data, {**one, "training.accumulate": 2}, folder / "micro")
    assert_close(folder / "one", folder / "micro")
    if devices:
        _train(name, data, one, folder / "two", devices=2)
        assert_close(folder / "one", folder / "two")


def _train(name: str, data: Any, settings: Mapping[str, Any], out: Path, **flags: Any) -> Result:
    return train(name, data, settings=settings, out=out, threads=1, quiet=True, **flags)


def assert_same(first: Path, second: Path) -> None:
    """The final weights, optimizer state and phase state of two runs are identical.

    Raises:
        AssertionError: with the first tensor that differs.
    """
    a, b = (read_checkpoint(run / "final").tensors for run in (first, second))
    assert a.keys() == b.keys(), f"{first} has {sorted(a)}, {second} has {sorted(b)}"
    for group in a:
        assert a[group].keys() == b[group].keys(), f"{group}: other names of tensors"
        for key, value in a[group].items():
            assert torch.equal(value, b[group][key]), f"{group}: {key} differs"


def fingerprint(run: Path, checkpoint: str = "final") -> str:
    """SHA-256 of the weights, optimizer state and phase state of a checkpoint."""
    tensors = read_checkpoint(run / checkpoint).tensors
    digest = hashlib.sha256()
    for group in sorted(tensors):
        for key in sorted(tensors[group]):
            digest.update(f"{group}/{key}".encode())
            digest.update(tensors[group][key].contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def assert_close(first: Path, second: Path, tolerance: float = TOLERANCE) -> None:
    """The final weights of two runs are equal up to rounding.

    Raises:
        AssertionError: with the first tensor that differs.
    """
    a, b = (read_checkpoint(run / "final").tensors["weights"] for run in (first, second))
    for key, value in a.items():
        far = (value.double() - b[key].double()).abs()
        allowed = tolerance * (1 + value.double().abs())
        assert bool((far <= allowed).all()), f"{key} differs by up to {far.max().item():.2g}"


def training_log(run: Path) -> list[dict[str, Any]]:
    """The records of ``metrics.jsonl`` that a repeated or resumed run reproduces."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {name: value for name, value in line.items() if name not in _VOLATILE}
        for line in lines
        if line["kind"] != "event"
    ]
