import json

import pytest
import torch

from bench import gpu_operations
from bench.gpu_check import attempt, main, markdown
from bench.gpu_operations import OPERATIONS

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", OPERATIONS, ids=lambda check: check.__name__)
def test_operations_hold_against_their_references(check):
    assert check(CPU)["passed"]


def test_a_wrong_operation_is_found(monkeypatch):
    right = gpu_operations.causal_attention
    monkeypatch.setattr(
        gpu_operations, "causal_attention", lambda *args, **kwargs: 1.001 * right(*args, **kwargs)
    )
    assert not gpu_operations.attention(CPU)["passed"]


def test_a_guard_that_lets_a_bad_step_through_is_found(monkeypatch):
    def careless(step, _finite):
        step.optimiser.grad_scale = step.optimiser.found_inf = None
        step.optimiser.step()
        if step.precision.scaler is not None:
            step.precision.scaler.update()

    monkeypatch.setattr(gpu_operations.OptimiserStep, "update", careless)
    assert not gpu_operations.guard(CPU)["passed"]


def test_what_a_check_raises_is_its_outcome():
    assert attempt(lambda: 1 / 0) == {
        "passed": False,
        "error": "ZeroDivisionError: division by zero",
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_refuses(tmp_path, capsys):
    assert main([], tmp_path) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_whole_check_runs_on_the_cpu(tmp_path, capsys):
    assert main(["--device", "cpu", "--quick", "--no-compile", "--no-contract"], tmp_path) == 0
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert [run["name"] for run in result["training"]][:2] == ["fp32", "bf16"]
    assert "| fp32 | yes |" in markdown(result)
    assert str(tmp_path) not in path.read_text()
