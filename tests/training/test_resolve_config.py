"""Batch size and learning rate for so many processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from hasten.config import RunConfig, TrainingOptions
from hasten.distributed.device import cpu_computes_fp16
from hasten.distributed.launch import Launch
from hasten.distributed.processes import Processes
from hasten.errors import ConfigurationError
from hasten.models.sequential.sasrec import SASRecOptions
from hasten.training.precision import refuse_emulated_fp16
from hasten.training.resolve_config import resolve_config


def of(world: int, device: str = "cpu", **training: object):
    launch = Launch(0, world, 0, world, "127.0.0.1", 0)
    config = RunConfig.model_validate({"model": SASRecOptions(), "training": training})
    return resolve_config(config, Processes(torch.device(device), launch))


def test_the_batch_is_global_by_default():
    layout = of(4, batch_size=128)
    assert layout.config.training.batch_size == 128
    assert layout.notes == ("batch size 128 over 4 processes, about 32 each",)
    assert layout.warnings == ()
    assert layout.config.devices == 4


@pytest.mark.parametrize(
    ("device", "chosen"), [("cuda", "auto"), ("cuda", "never"), ("cpu", "auto")]
)
def test_whole_tables_on_devices_are_told(device, chosen):
    notes = of(4, device, shard_tables=chosen).notes
    assert any("whole tables" in note for note in notes) == ((device, chosen) == ("cuda", "auto"))


def test_a_batch_a_process_grows_with_them_and_is_settled():
    layout = of(4, batch_size_per_device=32, lr=0.01)
    training = layout.config.training
    assert (training.batch_size, training.batch_size_per_device, training.lr) == (128, None, 0.01)
    assert layout.notes == ("batch size 128: 32 for each process",)
    # settled: the same run on any number of processes
    again = resolve_config(layout.config, Processes(torch.device("cpu")))
    assert again.config.training == training


@pytest.mark.parametrize(("rule", "factor"), [("sqrt", math.sqrt(4)), ("linear", 4.0)])
def test_the_learning_rate_is_scaled_as_asked_and_a_missing_warm_up_warned_of(rule, factor):
    layout = of(4, batch_size_per_device=32, lr=0.01, lr_scaling=rule)
    assert layout.config.training.lr == pytest.approx(0.01 * factor)
    assert layout.config.training.lr_scaling == "none"
    (warning,) = layout.warnings
    assert "without training.warmup_steps" in warning
    assert of(4, batch_size_per_device=32, lr_scaling=rule, warmup_steps=100).warnings == ()


def test_scaling_without_a_growing_batch_is_warned_of():
    (warning,) = of(4, lr_scaling="sqrt", warmup_steps=100).warnings
    assert "does not grow with the processes" in warning


def test_a_backend_for_one_process_is_warned_of():
    config = RunConfig.model_validate(
        {"model": SASRecOptions(), "distributed": {"backend": "gloo"}}
    )
    assert resolve_config(config, Processes(torch.device("cpu"))).warnings == (
        "distributed.backend has no effect on one process",
    )


def test_a_precision_that_the_cpu_only_emulates_is_warned_of(monkeypatch):
    monkeypatch.setattr("hasten.training.precision.cpu_computes_bf16", lambda: False)
    (warning,) = of(1, precision="bf16").warnings
    assert "slower here, not faster: this CPU has no bf16 instructions" in warning
    monkeypatch.setattr("hasten.training.precision.cpu_computes_fp16", lambda: False)
    (warning,) = of(1, precision="fp16").warnings
    assert "this CPU has no fp16 arithmetic" in warning
    assert of(1, precision="auto").warnings == of(1).warnings == ()
    monkeypatch.setattr("hasten.training.precision.cpu_computes_bf16", lambda: True)
    monkeypatch.setattr("hasten.training.precision.cpu_computes_fp16", lambda: True)
    assert of(1, precision="bf16").warnings == of(1, precision="fp16").warnings == ()


def test_fp16_is_refused_on_a_cpu_that_emulates_it(monkeypatch):
    """Not on a CPU that computes it, nor on another device, nor if it is forced."""
    cpu, module = torch.device("cpu"), "hasten.training.precision"
    fp16 = TrainingOptions(precision="fp16")
    monkeypatch.setattr(f"{module}.cpu_computes_fp16", lambda: False)
    for bf16, remedy in ((True, "--precision bf16, which this CPU"), (False, "--precision auto,")):
        monkeypatch.setattr(f"{module}.cpu_computes_bf16", lambda bf16=bf16: bf16)
        with pytest.raises(ConfigurationError, match=r"no fp16 arithmetic.*slower") as raised:
            refuse_emulated_fp16(fp16, cpu)
        assert remedy in str(raised.value)
        assert "--set training.emulate_fp16=true" in str(raised.value)
    for device in ("cuda", "mps"):
        refuse_emulated_fp16(fp16, torch.device(device))
    refuse_emulated_fp16(TrainingOptions(precision="fp16", emulate_fp16=True), cpu)
    for other in ("fp32", "bf16", "auto"):
        refuse_emulated_fp16(TrainingOptions(precision=other), cpu)
    monkeypatch.setattr(f"{module}.cpu_computes_fp16", lambda: True)
    refuse_emulated_fp16(fp16, cpu)


@pytest.mark.parametrize(
    ("flags", "computes"),
    [("avx2 avx512_bf16", False), ("avx512_fp16", True), ("amx_fp16", True), ("asimdhp", True)],
)
def test_fp16_arithmetic_is_read_from_the_flags_of_the_cpu(monkeypatch, flags, computes):
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: f"flags : fpu {flags}")
    monkeypatch.setattr("hasten.distributed.device.platform.machine", lambda: "x86_64")
    assert cpu_computes_fp16() == computes


def test_a_cleanup_that_can_do_nothing_is_warned_of(monkeypatch):
    assert of(1, cleanup_every=8).warnings == ()
    monkeypatch.setattr("hasten.training.resolve_config.can_release", lambda device: False)
    (warning,) = of(1, cleanup_every=8).warnings
    assert "cleanup_every has no effect" in warning
