"""The doctor finds what there is, fails when a test fails, and says it in JSON too."""

from __future__ import annotations

import json

import pytest

from hasten.cli.diagnostics import selftest
from hasten.cli.diagnostics.doctor import memory
from hasten.cli.diagnostics.selftest import Check, check_compiler, check_products, check_training
from hasten.cli.main import main
from hasten.runs.environment import cpu_features


def test_this_machine_is_described(capsys):
    assert main(["doctor", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["ok"] is True
    assert found["environment"]["versions"]["hasten"]
    assert {check["status"] for check in found["checks"]} <= {"ok", "warning"}
    assert found["memory"]["total_bytes"] > 2**28
    for name in ("matrix products", "training step", "working folder", "allocator"):
        assert name in shown.err


def test_a_failed_test_is_exit_code_one(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "check_training", lambda: Check("training step", "fail", "no"))
    assert main(["doctor", "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ok"] is False
    assert "1 of" in shown.err


def test_a_test_that_breaks_is_a_failed_test(monkeypatch, tmp_path):
    def breaks():
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(selftest, "check_products", breaks)
    checks = selftest.run_checks(tmp_path)
    assert checks[0] == Check("matrix products", "fail", "RuntimeError: no such instruction")


def test_the_training_test_can_fail(monkeypatch):
    assert check_training().status == "ok"
    monkeypatch.setattr(selftest, "_STEPS", 1)
    assert check_training().status == "fail"


def test_wrong_products_are_noticed(monkeypatch):
    assert check_products().status == "ok"
    monkeypatch.setattr(
        selftest.torch.Tensor,
        "float",
        lambda matrix: matrix.half().to(selftest.torch.float32) * 1.01,
    )
    assert check_products().status == "fail"


def test_a_missing_compiler_is_a_warning(monkeypatch):
    monkeypatch.setattr(selftest.shutil, "which", lambda name: None)
    assert check_compiler().status == "warning"


def test_a_folder_that_cannot_be_written_is_a_warning(monkeypatch, tmp_path):
    assert selftest.check_writable("x", tmp_path / "to" / "be" / "made").status == "ok"

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(selftest.tempfile, "TemporaryFile", refuse)
    check = selftest.check_writable("x", tmp_path)
    assert check.status == "warning"
    assert "Permission denied" in check.detail


def test_features_and_memory_on_this_system():
    assert all(isinstance(there, bool) for there in cpu_features().values())
    assert memory()["total_bytes"] > 0


@pytest.mark.parametrize("name", ["HASTEN_ALLOCATOR", "OMP_NUM_THREADS"])
def test_respected_variables_are_shown(monkeypatch, capsys, name):
    monkeypatch.setenv(name, "1")
    main(["doctor"])
    assert f"{name}=1" in capsys.readouterr().err
