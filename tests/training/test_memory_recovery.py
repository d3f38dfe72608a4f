"""Memory runs out, by injected errors: steps and evaluations are repeated, with the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten import api, run
from hasten.cli.main import main
from hasten.config_loading.build import load_config
from hasten.errors import OutOfMemoryError, is_out_of_memory
from hasten.evaluation import tile_inputs
from hasten.evaluation.query_tiles import TileMemoryRetry
from hasten.objectives.base import Batch
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import fingerprint
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES
from tests.distributed.test_processes import ROOT

ERRORS = (
    torch.OutOfMemoryError("injected"),
    RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    ),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"),
    MemoryError(),
)
CASE = {case.label: case for case in CASES}


def failing(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    calls: Collection[int],
    error: Exception = ERRORS[0],
    *,
    after: bool = True,
) -> list[int]:
    """Raise at these calls (from 1) of a method, after or before its work; counts the calls."""
    real, count = getattr(owner, name), [0]

    def function(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        fails = count[0] in calls
        found = real(*arguments, **named) if after or not fails else None
        if fails:
            raise error
        return found

    monkeypatch.setattr(owner, name, function)
    return count


def train(label: str, out: Path, *, dropout: bool = False, **settings: Any) -> Any:
    case = CASE[label]
    chosen = {**case.settings, **({} if dropout else case.without_dropout)}
    chosen |= {"device": "cpu", "threads": 1, "training.epochs": 2, "training.batch_size": 16}
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return api.train(case.model, case.data, settings=chosen | given, out=str(out), quiet=True)


def retreats(out: Path) -> list[tuple[Any, ...]]:
    """What was done, in order: (step, micro-batches, recompute, queries)."""
    found = json.loads((out / "metrics.json").read_text())["effective"]["retreats"]
    return [tuple(each.values()) for each in found or ()]


def assert_same(out: Path, expected: Path) -> None:
    found = read_checkpoint(out / "final").tensors["weights"]
    for name, tensor in read_checkpoint(expected / "final").tensors["weights"].items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
    ours, theirs = (json.loads((path / "metrics.json").read_text()) for path in (out, expected))
    for part in ("valid", "test"):
        assert ours[part] == pytest.approx(theirs[part], abs=1e-5)


PLACES: dict[str, Callable[[pytest.MonkeyPatch, Exception], Any]] = {
    "forward": lambda patch, error: failing(patch, OptimizerStep, "encode", {2, 3}, error),
    "backward": lambda patch, error: failing(patch, OptimizerStep, "backward", {3}, error),
    "optimizer": lambda patch, error: failing(patch, PhaseAdam, "step", {1, 4}, error, after=False),
    "evaluation": lambda patch, error: failing(patch, tile_inputs, "rank_all", {1}, error),
}
FAST = ("sasrec-ce", "kgat")
SLOW = (
    "sasrec-sampled-softmax",
    "tisasrec-bce",
    "bprmf",
    "lightgcn",
    "distmult",
    "hgt",
    "hgt-neighbors",
    "mmgcn",
    "dragon",
)


@pytest.mark.parametrize(
    "label", [*FAST, *(pytest.param(label, marks=pytest.mark.slow) for label in SLOW)]
)
def test_a_run_goes_on_with_the_same_result(label, tmp_path, monkeypatch):
    """After failures of the forward, the backward, the optimizer and the evaluation."""
    train(label, tmp_path / "plain")
    for inject, error in zip(PLACES.values(), ERRORS, strict=True):
        inject(monkeypatch, error)
    train(label, tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "plain")
    assert len(retreats(tmp_path / "run")) == 4  # none for the optimizer, whose update is repeated


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_each_failure_alone(place, tmp_path, monkeypatch):
    train("sasrec-ce", tmp_path / "plain")
    PLACES[place](monkeypatch, ERRORS[0])
    train("sasrec-ce", tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "plain")
    if place == "optimizer":
        assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "plain")


def test_with_dropout_recompute_changes_no_bit_and_a_resumed_run_keeps_the_settings(
    tmp_path, monkeypatch
):
    train("sasrec-ce", tmp_path / "plain", dropout=True)
    with monkeypatch.context() as patch:
        failing(patch, OptimizerStep, "encode", {2})
        train("sasrec-ce", tmp_path / "again", dropout=True)
    weights = [
        read_checkpoint(tmp_path / n / "final").tensors["weights"] for n in ("plain", "again")
    ]
    assert all(torch.equal(weights[0][name], tensor) for name, tensor in weights[1].items())
    with monkeypatch.context() as patch:
        failing(patch, OptimizerStep, "encode", {2, 3})
        train("sasrec-ce", tmp_path / "divided", dropout=True)
    assert retreats(tmp_path / "divided") == [(1, 1, True, 4096), (1, 2, True, 4096)]
    run.resume(tmp_path / "divided", checkpoint="epoch-0001", out=tmp_path / "resumed", quiet=True)
    assert fingerprint(tmp_path / "resumed") == fingerprint(tmp_path / "divided")
    assert load_config(tmp_path / "resumed" / "config.yaml").training.accumulate == 1


@pytest.mark.parametrize(
    ("label", "retries", "said"),
    [
        ("sasrec-ce", 5, "with 16 micro-batches. Each has one example"),
        ("conve", 3, "Groups of 8 examples share BatchNorm statistics and are not divided"),
        pytest.param(
            *("kgat", 5, "Phase pairwise encodes the graph once for all examples of a step"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_smallest_settings_end_the_run_with_one_message(
    label, retries, said, tmp_path, monkeypatch, capsys
):
    """After one attempt for each halving; the run goes on from its last checkpoint."""
    settings = {"model.group": 8} if label == "conve" else {}
    settings |= {"training.batch_size": 24 if label == "conve" else 16}
    train(label, tmp_path / "plain", **settings)
    settings["checkpoint.every_steps"] = 2
    with monkeypatch.context() as patch:
        count = failing(patch, OptimizerStep, "backward", range(4, 1000))
        with pytest.raises(OutOfMemoryError, match="memory ran out") as caught:
            train(label, tmp_path / "run", **settings)
    capsys.readouterr()
    assert said in str(caught.value)
    assert "hasten plan" in str(caught.value)
    assert (caught.value.code, caught.value.exit_code) == ("memory", 1)
    assert count[0] == 4 + retries
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert_same(tmp_path / "run", tmp_path / "plain")


def test_an_update_that_was_begun_is_not_repeated(tmp_path, monkeypatch):
    failing(monkeypatch, PhaseAdam, "step", {3})
    with pytest.raises(OutOfMemoryError, match="while the optimizer changed the weights"):
        train("sasrec-ce", tmp_path / "run", **{"checkpoint.every_steps": 1})
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["epoch-0000-step-000001", "epoch-0000-step-000002"]


def test_moments_that_were_not_allocated_whole_are_allocated_again(tmp_path, monkeypatch):
    train("sasrec-ce", tmp_path / "plain")
    real, count = torch.zeros_like, [0]

    def zeros_like(*arguments: Any, **named: Any) -> torch.Tensor:
        count[0] += 1
        if count[0] == 4:  # the second moment of the second parameter
            raise ERRORS[1]
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros_like", zeros_like)
        train("sasrec-ce", tmp_path / "run")
    assert count[0] > 4
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "plain")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_phase_is_not_compiled_if_there_is_no_memory_to_measure_it(tmp_path, monkeypatch):
    failing(monkeypatch, OptimizerStep, "encode", {1})
    found = train("sasrec-ce", tmp_path / "run", training__compile="auto").summary.effective
    (report,) = found["compile"]
    assert not report["in_effect"]
    assert report["note"] == "memory ran out: not measured"
    assert found["retreats"] is None


def test_other_errors_are_raised(tmp_path, monkeypatch):
    failing(monkeypatch, OptimizerStep, "encode", {2}, RuntimeError("another"))
    with pytest.raises(RuntimeError, match="another"):
        train("sasrec-ce", tmp_path / "run")


def test_an_evaluation_is_the_same_for_any_number_of_queries(tmp_path, monkeypatch):
    train("sasrec-ce", tmp_path / "plain", training__epochs=1)
    before = run_evaluation(tmp_path / "plain")
    for halvings in (1, 8):
        with monkeypatch.context() as patch:
            failing(patch, tile_inputs, "rank_all", range(1, halvings + 1))
            found = run_evaluation(tmp_path / "plain")
        for part in ("valid", "test"):
            assert found[part] == pytest.approx(before[part], abs=1e-5)


def run_evaluation(out: Path) -> dict[str, Any]:
    from hasten.loaded_run import evaluate

    return evaluate(out, device="cpu")


def test_an_evaluation_ends_with_one_message():
    released: list[int] = []
    chunks = TileMemoryRetry(lambda: released.append(chunks.rows))

    def function() -> None:
        raise MemoryError

    with pytest.raises(OutOfMemoryError, match="with one query at a time"):
        chunks.attempt(function)
    assert released == [256, 128, 64, 32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(("count", "group"), [(1, 1), (7, 1), (16, 8), (17, 8), (18, 8), (1, 8)])
def test_the_most_micro_batches(count, group):
    batch = Batch(torch.arange(count), 0, 0, 0, group=group)
    parts = [len(batch.micro_batch_ids(part, 99)) for part in range(99)]
    assert batch.max_micro_batches == sum(size > 0 for size in parts)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_allocators_are_known(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_a_limit_of_the_address_space(tmp_path):
    """A real failure of the allocator: the run ends without the retreat, and goes on with it."""
    # large blocks go back to the system when they are freed, so that the limit leaves known room
    allocator = {"HASTEN_ALLOCATOR": "off", "MALLOC_MMAP_THRESHOLD_": str(2**17)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **allocator}
    command = [sys.executable, "-m", "tests.training.memory_limit_driver"]
    ended = [
        subprocess.run(
            [*command, str(tmp_path / how), how],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
        )
        for how in ("raise", "retreat")
    ]  # fmt: skip
    assert ended[0].returncode == 1
    assert "allocate memory" in ended[0].stderr
    assert ended[1].returncode == 0, ended[1].stderr
    assert retreats(tmp_path / "retreat")
