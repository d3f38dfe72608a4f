import json
from functools import partial

import pytest
import torch

from bench import (
    gpu_capture,
    gpu_check,
    gpu_losses,
    gpu_operations,
    gpu_parts,
    gpu_plain,
    gpu_plain_sides,
    gpu_sharded,
    gpu_steps,
)
from bench.gpu_check import (
    kernel_lines,
    main,
    markdown,
    plain_lines,
    step_lines,
)
from bench.gpu_data import facts, made_book
from bench.gpu_kernels import triton_kernels, triton_times
from bench.gpu_losses import losses, near
from bench.gpu_operations import OPERATIONS
from bench.gpu_parts import ALONE, BESIDE, in_process, run_part, suite_outcome, verdict
from bench.gpu_training import Synthetic
from experiments.loss_precision import small_gallery, stable_loss
from hasten.distributed.row_requests import RequestedRows
from hasten.training.capture import step as capture
from tests.device.recorder import recording
from tests.device.replay import SimulatedGraphs
from tests.device.simulation import simulated
from tests.distributed.alone import Alone

CPU = torch.device("cpu")
KERNELS = {"kernels": triton_kernels, "times": triton_times}


@pytest.mark.parametrize("check", OPERATIONS, ids=lambda check: check.__name__)
def test_operations_hold_against_their_references(check):
    assert check(CPU)["passed"]


def test_kernels_in_the_interpreter_hold_against_float64():
    pytest.importorskip("triton", reason="Triton has no package for this system")
    found = triton_kernels(CPU, [torch.float32])
    assert found["passed"], found
    assert all(each["error"] < 1e-5 for each in found["errors"].values())


def test_wrong_kernels_are_found(monkeypatch):
    kernels = pytest.importorskip("hasten.ops.triton.one_to_many")
    right = kernels.one_to_many
    monkeypatch.setattr(kernels, "one_to_many", lambda *args: 1.01 * right(*args))
    assert not triton_kernels(CPU, [torch.float32])["passed"]


def test_without_a_device_kernels_are_not_timed():
    outcome = {name: check(CPU) for name, check in KERNELS.items()}
    assert all(each["passed"] and verdict(each).startswith("not run") for each in outcome.values())


def test_the_table_of_kernel_times():
    kernels, present = {"ms": 1.5, "graph_ms": 0.5}, {"ms": 2.0, "graph_ms": None}
    times = {"1-n": {"kernels": kernels, "present": present, "plain": None}}
    times["1-n"]["share_of_roofline"] = 0.416
    assert kernel_lines(times)[-1] == "| 1-n | 0.50 | 2.00 without one | out of memory | 42% |"
    assert kernel_lines({}) == []


def test_a_step_of_a_model_and_its_table(monkeypatch):
    found = gpu_steps.model_steps(CPU, ["bprmf"], 1)
    assert found["passed"], found
    (row,) = found["phases"].values()
    # Adam alone reads weights, gradients and two moments, and writes three of them
    assert row["bytes"] > 7 * 4 * 64 * (gpu_steps.USERS + gpu_steps.ITEMS)
    assert row["launches"] is None
    (line,) = step_lines(found["phases"])[3:]
    assert line.startswith("| bprmf, pairwise | ")
    monkeypatch.setattr(gpu_steps.OptimizerStep, "__call__", lambda *_: 1 / 0)
    wrong = gpu_steps.model_steps(CPU, ["bprmf"], 1)
    assert not wrong["passed"]
    assert "ZeroDivisionError" in step_lines(wrong["phases"])[-1]


@pytest.mark.parametrize(
    "name",
    [
        "sasrec, sampled-softmax",
        "kgat",
        "conve",
        "complex, 1vsall, small",
        "complex, softmax, N3",
        "hgt",
    ],
)
def test_captured_steps_are_compared_with_usual_ones(name, monkeypatch):
    """On the simulated device, where graphs replay their operations."""
    monkeypatch.setattr(capture, "CudaGraphs", SimulatedGraphs)
    monkeypatch.setattr(capture, "WARM_UP", 1)
    monkeypatch.setattr(gpu_capture, "STEPS", 6)
    monkeypatch.setattr(gpu_capture, "Synthetic", lambda *_: Synthetic(700, 100, 12))
    monkeypatch.setattr(gpu_capture, "facts", lambda: facts(60, 4, 400))
    monkeypatch.setattr(gpu_capture, "ENTITIES", 60)
    monkeypatch.setattr(gpu_capture, "made_book", lambda _: made_book(0.01))
    with simulated("cuda") as device:
        found = gpu_capture.compared(*gpu_capture.MODELS[name], device)
    assert found["passed"]
    assert found["equal"]


@pytest.fixture
def _few_steps(monkeypatch):
    monkeypatch.setattr(gpu_plain, "WARM_UP", 1)
    monkeypatch.setattr(gpu_plain, "TIMED", 1)


@pytest.mark.usefixtures("_few_steps")
def test_steps_beside_plain_pytorch_and_their_table(monkeypatch):
    found = gpu_plain.beside_plain(CPU, ["kgat"], quick=True)
    assert found["passed"], found
    assert list(found["phases"]) == ["kgat, pairwise", "kgat, translation"]
    for row in found["phases"].values():
        assert row["ratio"] == row["plain_ms"] / row["ms"] > 0
        assert not row["captured"]
    assert plain_lines(found["phases"])[3].startswith("| kgat, pairwise | ")
    assert plain_lines({}) == []
    monkeypatch.setitem(gpu_plain.PLAIN, "conve", lambda *_: 1 / 0)
    wrong = gpu_plain.beside_plain(CPU, ["conve", "lightgcn"], quick=True)
    assert not wrong["passed"]
    assert "ZeroDivisionError" in wrong["error"]
    assert "ratio" in wrong["phases"]["lightgcn, pairwise"]  # one does not hide the others


@pytest.mark.usefixtures("_few_steps")
def test_the_plain_sides_run_on_a_device():
    """No tensor of the host among those of the device: on the simulated one."""
    with simulated("cuda") as device:
        for model in gpu_plain_sides.PLAIN:
            config, data = gpu_plain_sides.problem(model, quick=True)
            plain = gpu_plain_sides.PLAIN[model](data, config.training.batch_size, device)
            for phase in plain.values():
                take = phase.stepper()
                with recording() as taken:
                    take(0)
                assert not taken.mistakes, (model, taken.mistakes)
                assert not taken.uploads, (model, taken.uploads)


@pytest.mark.slow
def test_the_published_loss_ends_and_ours_does_not():
    found = losses(CPU, 70)
    assert found["passed"], found
    assert found["runs"]["published, fp16"]["first_step_not_finite"] is not None
    assert found["runs"]["ours, bf16"]["cpu_ms_a_step"] > 0


def in_half(wrong):
    """The loss, and another one where autocast is on."""

    def loss(*vectors):
        return wrong(*vectors) if torch.is_autocast_enabled("cpu") else stable_loss(*vectors)

    return loss


@pytest.mark.parametrize(
    "loss",
    [
        stable_loss,
        in_half(lambda user, *items: stable_loss(3 * user, *items)),
        in_half(lambda user, *items: stable_loss(user.detach(), *items)),
        in_half(lambda *vectors: stable_loss(*(each[:32] for each in vectors))),
    ],
    ids=["right", "larger scores", "no gradient of users", "a part of the batch"],
)
def test_a_loss_that_is_wrong_in_half_precision_strays(loss, monkeypatch):
    monkeypatch.setattr(gpu_losses, "stable_loss", loss)
    found = near(small_gallery(), CPU)
    assert found["passed"] is (loss is stable_loss), found


@pytest.mark.parametrize(
    ("ends", "published", "passed"),
    [
        ({"fp16": 0.5, "bf16": 0.6}, 5, True),
        ({"fp16": 0.5, "bf16": 0.6}, None, False),
        ({"fp16": 0.5, "bf16": 2.6}, 5, False),
        ({"fp16": None, "bf16": 0.6}, 5, False),
    ],
    ids=["as it should be", "the published one is finite", "bf16 strays", "fp16 ends"],
)
def test_what_is_asked_of_the_losses(ends, published, passed, monkeypatch):
    def train(dataset, how, loss_of, seed, steps, device, rate=None):
        end = {"fp32": 0.55, **ends}[how]
        first = published if loss_of is not gpu_losses.stable_loss else None if end else 3
        return {"losses": [0.7] * 20 + [end] * (steps - 20), "first_step_not_finite": first}

    monkeypatch.setattr(gpu_losses, "train", train)
    monkeypatch.setattr(gpu_losses, "small_gallery", lambda: None)
    assert losses(CPU, 30)["passed"] is passed


def test_a_wrong_operation_is_found(monkeypatch):
    right = gpu_operations.causal_attention
    monkeypatch.setattr(
        gpu_operations, "causal_attention", lambda *args, **kwargs: 1.001 * right(*args, **kwargs)
    )
    assert not gpu_operations.attention(CPU)["passed"]


def test_a_guard_that_lets_a_bad_step_through_is_found(monkeypatch):
    def careless(step, _finite):
        step.optimizer.grad_scale = step.optimizer.found_inf = None
        step.optimizer.step()
        if step.precision.scaler is not None:
            step.precision.scaler.update()

    monkeypatch.setattr(gpu_operations.OptimizerStep, "update", careless)
    assert not gpu_operations.guard(CPU)["passed"]


@pytest.mark.parametrize("name", gpu_sharded.LOSSES)
def test_sharded_tables_are_compared_with_whole_ones(name, monkeypatch):
    monkeypatch.setattr(gpu_sharded, "Synthetic", lambda *_: Synthetic(300, 200, 12))
    processes, loss = Alone(CPU), gpu_sharded.LOSSES[name]
    found = gpu_sharded.compared(loss, 4, processes)
    assert found["passed"], found
    assert found["rows"] == 200
    right = RequestedRows.fetch
    monkeypatch.setattr(RequestedRows, "fetch", lambda *given: right(*given).flip(0))
    assert not gpu_sharded.compared(loss, 4, processes)["passed"]


def test_a_suite_that_is_stopped_names_what_failed_until_then():
    lines = ["[gw1] [  1%] PASSED tests/a.py::one[x]", "[gw0] [  2%] FAILED tests/a.py::two[y]"]
    found = suite_outcome([*lines, "E   AssertionError"], None, 3)
    assert found["failed"] == ["tests/a.py::two[y]"]
    assert (found["passed_tests"], found["told"]) == (1, ["E   AssertionError"])
    assert found["error"] == "stopped after 3 s"
    assert suite_outcome(["1 passed in 2 s"], 0, 3) == {
        "passed": True,
        "closing": "1 passed in 2 s",
    }


def test_what_a_part_raises_is_its_outcome(monkeypatch):
    monkeypatch.setattr(gpu_operations, "OPERATIONS", [lambda _: 1 / 0])
    found = run_part("operations", CPU, quick=True, compiled=False)
    assert not found["passed"]
    (check,) = found["checks"].values()
    assert check["error"] == "ZeroDivisionError: division by zero"
    monkeypatch.setattr(gpu_parts, "_parts", lambda *_: {"wrong": partial(divmod, 1, 0)})
    found = run_part("wrong", CPU, quick=True, compiled=False)
    assert found["error"].startswith("ZeroDivisionError")


def test_a_part_runs_in_a_process_of_its_own():
    found = in_process("operations", ["--device", "cpu", "--quick"], None)
    assert found["passed"], found
    assert len(found["checks"]) == len(OPERATIONS)


def test_a_part_is_stopped_when_its_time_is_spent():
    found = in_process("training", ["--device", "cpu"], 0.5)
    assert found.pop("seconds") < 10
    assert found == {"passed": False, "error": "stopped after 0.5 s"}


def test_a_part_that_ends_without_an_outcome_fails_with_what_it_told():
    found = in_process("nonsense", ["--devise"], None)
    assert not found["passed"]
    assert "unrecognized arguments: --devise" in found["error"]


def test_what_ended_the_trainings_is_in_the_record(monkeypatch):
    stopped = {"passed": False, "error": "stopped after 120 s", "seconds": 120}
    outcomes = {"repeated": {"passed": True}, "losses": {"passed": True}, "training": stopped}
    monkeypatch.setattr(gpu_check, "run_parts", lambda *_, **__: outcomes)
    result = gpu_check.check(CPU, quick=True, compiled=False, contract=False)
    assert not result["passed"]
    assert "| training | no: stopped after 120 s |" in markdown(result)


def test_all_parts_together_take_less_than_nine_minutes():
    """Where the parts that check run beside each other."""
    assert max(BESIDE.values()) + sum(ALONE.values()) < 9 * 60


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
