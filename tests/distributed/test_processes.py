"""Several processes over gloo: the same training as one, and what they tell each other."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from hasten.distributed.processes import Processes
from tests import forked
from tests.distributed import worker
from tests.distributed.worker import CPU, FEWER_STEPS, MODELS, STEPS

#: an epoch takes few links again and again beside many of another relation, and contrasted nodes
REPEATING = {"hgt", "hgt-self-score", "hgt-shallow", "hgt-edges", "hgt-neighbors"}

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def run_workers(
    world: int, out: Path, module: str = "tests.distributed.worker"
) -> list[dict[str, Any]]:
    """What the processes of a module find on every rank."""
    port = free_port()
    variables = {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    logs, started = [out / f"{rank}.stderr" for rank in range(world)], []
    for rank, log in enumerate(logs):
        own = {**variables, "RANK": rank, "LOCAL_RANK": rank}
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        with log.open("w") as file:
            command = [sys.executable, "-m", module, str(out)]
            started.append(forked.Popen(command, env=environment, stderr=file))
    try:
        codes = [process.wait(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * world, "\n".join(log.read_text() for log in logs)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module", params=[2, 3])
def several(request, tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp(f"world-{request.param}")
    return out, run_workers(request.param, out)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {name: worker.train(name, Processes(CPU)) for name in MODELS}


def test_any_number_of_processes_trains_the_same(several, alone):
    """Losses and weights of 200 steps; the ranks among each other to the last bit."""
    out, found = several
    for name in worker.names(len(found)):
        model, losses, _ = alone[name]
        assert len(losses) >= STEPS.get(name, FEWER_STEPS)
        expected = model.state_dict()
        for rank, each in enumerate(found):
            for ours, theirs in zip(each["training"][name]["losses"], losses, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-5), name
            weights = load_file(out / f"{name}-{rank}.safetensors")
            first = load_file(out / f"{name}-0.safetensors")
            for key, tensor in expected.items():
                assert_close(weights[key], tensor, rtol=1e-5, atol=1e-8, msg=f"{name}: {{}}".format)
                assert torch.equal(weights[key], first[key]), (name, key)


def test_accumulation_in_several_processes_trains_the_same(several):
    out, found = several
    model, losses, _ = worker.train("sasrec-ce", Processes(CPU), FEWER_STEPS)
    for ours, theirs in zip(found[0]["training"]["accumulated"]["losses"], losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    weights = load_file(out / "accumulated-0.safetensors")
    for key, tensor in model.state_dict().items():
        assert_close(weights[key], tensor, rtol=1e-5, atol=1e-8)


def test_every_example_is_seen_once_an_epoch(several, alone):
    """Batches do not divide by the processes, and the last ones leave some without rows."""
    _, found = several
    for name in worker.names(len(found)):
        together = sorted(tuple(s) for each in found for s in each["training"][name]["seen"])
        assert together == sorted(alone[name][2]), name
        if name not in REPEATING:
            assert len(set(together)) == len(together), name


def test_some_shares_are_empty(several):
    """Or the test above would not show that they cannot hang: 50 users in batches of 7 leave 1."""
    _, found = several
    seen = [
        {row for _, epoch, row in each["training"]["sasrec-ce"]["seen"] if epoch == 0}
        for each in found
    ]
    _, (phase,) = MODELS["sasrec-ce"]()
    last = phase.plan(0, 0, phase.steps() - 1)
    assert len(last.ids) == 1
    assert sum(bool(rows & set(last.ids.tolist())) for rows in seen) == 1


def test_without_the_exchange_every_process_trains_alone(several, alone):
    """What the first test would find, were gradients not reduced."""
    out, found = several
    model, _, _ = worker.train("sasrec-ce", Processes(CPU), 10)
    expected = model.state_dict()["items.weight"]
    own = [load_file(out / f"alone-{r}.safetensors")["items.weight"] for r in range(len(found))]
    for weights in own:
        assert not torch.allclose(weights, expected, rtol=1e-3, atol=1e-4)
    assert not torch.equal(own[0], own[1])


def test_a_bad_gradient_on_one_process_changes_nothing_on_any(several):
    _, found = several
    for each in found:
        for precision, outcome in each["poisoned"].items():
            assert outcome["unchanged"], precision
            assert outcome["bad"] == 1
            assert outcome["goes_on"]
            assert set(outcome["losses"].values()) == {0.0}


def test_requests_reach_every_process(several):
    _, found = several
    assert all(each["control_flags"] == [0, 1, 1, 0] for each in found)


def test_a_thread_exchanges_ids_beside_other_collectives_in_any_order(several):
    _, found = several
    ids = [set(range(rank, 40, 3 + rank)) for rank in range(len(found))]
    expected = [*range(len(found)), *sorted(set().union(*ids))]
    assert [each["union"] for each in found] == [expected] * len(found)


def test_what_is_exchanged_arrives(several):
    _, found = several
    world = len(found)
    for rank, each in enumerate(found):
        told = each["collectives"]
        assert told["gathered"] == [{"rank": r, "text": "é" * r} for r in range(world)]
        assert told["run_on_rank0"] == {"value": [0, None, 0.1]}
        assert told["sum"] == [world, world * (world - 1) / 2]
        assert told["run_on_all_ranks"] == rank
        assert told["merged"] == [[world * (world - 1) // 2, 0], [world, world]]
        assert told["stopped"]


def test_an_error_of_one_is_an_error_of_all(several):
    _, found = several
    last = len(found) - 1
    for rank, each in enumerate(found):
        told = each["collectives"]
        assert told["refused_by_rank0"][1:] == ["configuration", 2, True, "refused by 0"]
        message = f"rank {last}: refused by {last}"
        assert told["refused_by_last"][1:] == ["configuration", 2, True, message]
        assert told["refused_by_all"][1:] == ["configuration", 2, True, f"refused by {rank}"]


def test_other_weights_and_other_data_are_noticed(several):
    _, found = several
    for each in found:
        told = each["collectives"]
        for name in ("same_weights", "same_checksums", "same_data"):
            assert told[name] == ["nothing"], name
        assert told["other_weights"][3:] == [
            True,
            "now, the weights of rank 1 differs from that of rank 0: the processes would train "
            "different models; do they run the same versions?",
        ]
        assert "now, weight of rank 1 differs" in told["other_checksums"][4]
        assert told["other_data"][1:4] == ["data", 2, True]
        assert "rank 1 (on" in told["other_data"][4]


def test_a_checkpoint_of_the_first_reaches_all_bit_for_bit(several):
    _, found = several
    first = found[0]["checkpoint"]
    assert set(first["tensors"]) == {
        *("weights.a", "weights.scalar", "weights.empty", "weights.bf16"),
        *("optimisers.step", "optimisers.flag"),
    }
    assert "0.30000000000000004" in first["state"]
    assert all(each["checkpoint"] == first for each in found)
    assert first["none"]


def test_one_process_under_a_launcher_trains_as_without_one_bit_for_bit(tmp_path):
    """It joins itself: nothing is divided, exchanged or copied."""
    launched = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    plain = {name: value for name, value in os.environ.items() if name not in launched}
    weights = []
    for name, environment in (("plain", plain), ("launched", {**plain, **launched})):
        out = tmp_path / name
        command = ["train", "kgat", "--epochs", "1", "--device", "cpu", "--quiet"]
        command = [sys.executable, "-m", "hasten", *command, "--threads", "1", "--out", str(out)]
        with (tmp_path / f"{name}.stderr").open("w+") as log:
            done = forked.Popen(command, env={**environment, "OMP_NUM_THREADS": "1"}, stderr=log)
            assert done.wait(timeout=180) == 0, (tmp_path / f"{name}.stderr").read_text()
        weights.append(load_file(out / "checkpoints" / "epoch-0001" / "weights.safetensors"))
    first, second = weights
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
