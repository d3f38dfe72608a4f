"""Contract tests for models of other packages: ``check_model("name")`` runs all of them.

Each check trains a small model in a temporary folder and raises AssertionError with what differs.
No test framework is needed; in pytest, call the checks from test functions.
"""

from __future__ import annotations

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

#: how far weights of runs may be apart that sum the same numbers in another order (float32)
TOLERANCE = 1e-3


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
    """The same seed gives the same weights."""
    _train(name, data, settings, folder / "again")
    _compare(folder / "whole", folder / "again", 0.0, "the same seed gives other weights")


def check_resuming(name: str, data: Any, settings: Mapping[str, Any], folder: Path) -> None:
    """A run that is resumed after its first epoch equals an uninterrupted one."""
    _train(name, data, {**settings, "training.epochs": 1}, folder / "part")
    resume(folder / "part", changes={"training.epochs": settings["training.epochs"]}, quiet=True)
    _compare(folder / "whole", folder / "part", 0.0, "a resumed run has other weights")


def check_inference(result: Result) -> None:
    """The run folder alone gives the reported metrics, and recommendations or predictions."""
    found = evaluate(result.path)["test"]
    assert found == result.metrics, f"evaluate gives {found}, the run reported {result.metrics}"
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
    _compare(folder / "one", folder / "micro", TOLERANCE, "micro-batches change the weights")
    if devices:
        _train(name, data, one, folder / "two", devices=2)
        _compare(folder / "one", folder / "two", TOLERANCE, "two processes change the weights")


def _train(name: str, data: Any, settings: Mapping[str, Any], out: Path, **flags: Any) -> Result:
    return train(name, data, settings=settings, out=out, threads=1, quiet=True, **flags)


def _compare(first: Path, second: Path, tolerance: float, message: str) -> None:
    a, b = (read_checkpoint(run / "final").tensors["weights"] for run in (first, second))
    for key, value in a.items():
        far = (value.double() - b[key].double()).abs().max().item() if value.numel() else 0.0
        same = torch.equal(value, b[key]) if tolerance == 0 else far <= tolerance
        assert same, f"{message}: {key} differs by {far:.2g}"
