"""Tables that are sharded over simulated CUDA devices: the training and metrics of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.csv as pacsv
import pytest
import torch
from safetensors.torch import load_file

from hasten.distributed.processes import Processes
from tests.distributed import sharded_worker as worker
from tests.distributed.sharded_device_worker import WHOLE
from tests.distributed.sharded_worker import CPU, MODELS, STEPS
from tests.distributed.test_processes import run_workers
from tests.distributed.test_sharded_tables import FLAGS, RUNS, events, run  # noqa: F401


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("devices")
    return run_workers(2, out, "tests.distributed.sharded_device_worker")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    worker.OUT = tmp_path_factory.mktemp("alone")
    return {name: worker.train(name, Processes(CPU)) for name in MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_devices_train_as_one_cpu_does(name, several, alone):
    expected = alone[name]
    for each in several:
        for ours, theirs in zip(each[name]["losses"], expected["losses"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        assert each[name]["metrics"] == pytest.approx(expected["metrics"], abs=1e-12)
        assert each[name]["ranks"] == expected["ranks"]
    found = several[0][name]
    for group in ("weights", "optimisers", "phases"):
        for key, values in expected[group].items():
            torch.testing.assert_close(
                torch.tensor(found[group][key]), torch.tensor(values), rtol=1e-5, atol=1e-7
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_thread_exchanges_the_rows_of_whole_tables_beside_the_steps(name, several, alone):
    """In a process group of its own; the steps wait for nothing."""
    expected = alone[name]
    for each in several:
        found = each[f"{name}, whole"]
        assert not found["sharded"]
        assert not found["mistakes"]
        assert not any(found["waits"])
        for ours, theirs in zip(found["losses"], expected["losses"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
    written = several[0][f"{name}, whole"]["weights"]
    for key, values in expected["weights"].items():
        torch.testing.assert_close(
            torch.tensor(written[key]), torch.tensor(values), rtol=1e-5, atol=1e-7
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_device_holds_its_rows_and_waits_once_in_a_step(name, several, alone):
    """For the ids that others ask for; more often in steps whose messages need more space."""
    for each in several:
        found = each[name]
        assert not found["mistakes"]
        for table in found["sharded"]:
            held = sum(other[name]["held"][table][0] for other in several)
            assert held == alone[name]["held"][table][0]
            assert abs(2 * found["held"][table][0] - held) <= 1
        waits = [list(of_step.items()) for of_step in found["waits"]]
        assert len(waits) == STEPS
        assert all("row_requests.py" in where for of_step in waits for where, _ in of_step)
        times = [sum(count for _, count in of_step) for of_step in waits]
        assert min(times) == (0 if name.startswith(("lightgcn", "kgat")) else 1)
        assert sum(times) <= STEPS + 6


@pytest.mark.slow
def test_rows_and_losses_of_devices_are_those_of_whole_tables(several):
    for each in several:
        assert len(each["table losses"]) == 7
        assert max(each["table losses"].values()) < 1e-9
        for found in each["requested rows"].values():
            assert found["rows"]
            assert found["sums"]
            assert found["distinct"]
        assert each["skipped"].keys() == {"sasrec-bce", "bprmf", "kgat"}
        for found in each["skipped"].values():
            assert found == {"steps": [0.0, 1.0], "unchanged": True, "goes on": True}


def on_devices(count: int, folder: Path, *arguments: object) -> None:
    """``hasten`` with these arguments in so many processes, each with a device."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps([str(each) for each in arguments]))
    for told in run_workers(count, folder, "tests.distributed.device_run_worker"):
        assert told["code"] == 0
        assert told["kernels"] > 1000
        assert not told["mistakes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "second"), [("sasrec ce", 2, 3), ("sasrec bce", 2, 1), ("bprmf", 3, 2)]
)
def test_a_run_resumes_on_another_number_of_devices(name, first, second, events, tmp_path, capfd):  # noqa: F811
    """From checkpoints of whole tables; the run of one CPU is the same."""
    model, options = name.split(maxsplit=1)[0], [*FLAGS, *RUNS[name]]
    run("train", model, events, *options, "--epochs", "4", "--out", tmp_path / "whole")
    options = ["cuda" if each == "cpu" else each for each in options]
    part = tmp_path / "part"
    on_devices(
        first, tmp_path / "a", "train", model, events, *options, "--epochs", 2, "--out", part
    )
    on_devices(second, tmp_path / "b", "resume", part, "--epochs", 4, "--quiet")
    for kind in ("final", "best"):
        ours = load_file(part / kind / "weights.safetensors")
        for key, values in load_file(tmp_path / "whole" / kind / "weights.safetensors").items():
            torch.testing.assert_close(ours[key], values, rtol=1e-3, atol=2e-5)
    found = [
        json.loads((tmp_path / each / "metrics.json").read_text()) for each in ("whole", "part")
    ]
    assert found[0]["test"] == pytest.approx(found[1]["test"], abs=1e-6)
    assert bool(found[1]["effective"]["sharded_tables"]) == (second > 1)
    for each in ("whole", "part"):
        lists = ["--topk", "5", "--out", tmp_path / f"{each}.csv", "--device", "cpu"]
        run("recommend", tmp_path / each, "--users", "all", *lists)
    capfd.readouterr()
    lists = [pacsv.read_csv(tmp_path / f"{each}.csv") for each in ("whole", "part")]
    assert lists[0].column("item_id").equals(lists[1].column("item_id"))
