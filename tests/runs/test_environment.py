"""What a run ran on is recorded; what is secret is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from hasten.runs import environment as module
from hasten.runs.environment import (
    describe_environment,
    peak_memory_bytes,
    recorded_variables,
    ru_maxrss_bytes,
)

SECRETS = {
    "HASTEN_TOKEN": "planted-1",
    "HASTEN_API_KEY": "planted-2",
    "NCCL_SECRET": "planted-3",
    "TORCH_PASSWORD": "planted-4",
    "PYTORCH_AUTH": "planted-5",
    "HASTEN_DB_PWD": "planted-6",
    "HASTEN_CREDENTIALS": "planted-7",
    "AWS_SECRET_ACCESS_KEY": "planted-8",
    "PATH_TO_PLANTED": "planted-9",
    "LD_PRELOAD": "planted-10",
    "hasten_token": "planted-11",
    "XHASTEN_A": "planted-12",
    "OMP_NUM_THREADS_X": "planted-13",
    # an innocent name around a secret value
    "HASTEN_PROXY": "https://user:planted@host/path",
    "HASTEN_HUB": "hf_plantedplantedplanted",
    "NCCL_NET": "ghp_plantedplantedplanted",
    "TORCH_HOME": "AKIAPLANTED1234567890",
    "TORCH_LOGS": "a;password=planted",
    "TORCH_NOTE": "planted3f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4",
    "PYTORCH_JWT": "eyJplanted.eyJ.x",
    "PYTORCH_PEM": "-----BEGIN PLANTED KEY-----",
    "HASTEN_LINES": "planted\nline",
    "HASTEN_LONG": "planted " * 100,
}
WANTED = {
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "THP_MEM_ALLOC_ENABLE": "1",
    "NCCL_SOCKET_IFNAME": "eth0",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
    "TORCH_LOGS_FORMAT": "short",
    "HASTEN_TEST_DATA": "../shared/data",
}


def test_only_allowed_variables_without_secrets_are_recorded():
    assert recorded_variables(SECRETS | WANTED) == WANTED


def test_planted_secrets_appear_nowhere(monkeypatch):
    for name, value in (SECRETS | WANTED).items():
        monkeypatch.setenv(name, value)
    text = json.dumps(describe_environment())
    assert "planted" not in text.lower()
    assert "expandable_segments:True" in text


def test_what_is_needed_to_compare_runs_is_there():
    found = describe_environment()
    json.dumps(found, allow_nan=False)
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["hasten"]
    assert found["cpu"]["count"] == os.cpu_count()
    assert found["cpu"]["model"]
    assert found["memory_bytes"] > 2**28
    assert found["threads"]["within_operations"] == torch.get_num_threads()
    assert set(found["commits"]) == {"hasten", "working_folder"}


def git(folder, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_commits_of_all_kinds_of_work_trees(tmp_path):
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    git(main, "init", "-q", "-b", "trunk")
    assert module._git_commit([tmp_path, main]) is None  # no commit yet
    git(main, "commit", "-q", "--allow-empty", "-m", "one")
    first = git(main, "rev-parse", "HEAD")
    assert module._git_commit([tmp_path, main]) == first
    git(main, "worktree", "add", "-q", "-b", "side", str(linked))
    git(linked, "commit", "-q", "--allow-empty", "-m", "two")
    second = git(linked, "rev-parse", "HEAD")
    assert module._git_commit([linked]) == second
    git(main, "pack-refs", "--all")
    assert (module._git_commit([main]), module._git_commit([linked])) == (first, second)
    git(main, "checkout", "-q", "--detach", second)
    assert module._git_commit([main]) == second
    assert module._git_commit([tmp_path]) is None


def test_peak_memory_in_bytes():
    """In a process of its own, whose allocator gives pages back."""
    code = """
import torch
from hasten.runs.environment import peak_memory_bytes, reset_peak_memory
before = peak_memory_bytes()
assert before > 50 * 2**20, before  # torch alone is more
block = torch.ones(64 * 2**20, dtype=torch.uint8)
assert peak_memory_bytes() >= before
del block
if reset_peak_memory():
    low = peak_memory_bytes()
    block = torch.ones(256 * 2**20, dtype=torch.uint8)
    assert block[-1] == 1
    grown = peak_memory_bytes() - low
    assert 240 * 2**20 < grown < 300 * 2**20, grown
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("system", "unit"), [("darwin", 1), ("linux", 1024), ("freebsd14", 1024)])
def test_the_unit_of_each_system(system, unit):
    assert ru_maxrss_bytes(7, system) == 7 * unit


def test_without_proc_the_figures_come_from_elsewhere(monkeypatch):
    exists = module.Path.exists
    monkeypatch.setattr(
        module.Path, "exists", lambda self: not str(self).startswith("/proc") and exists(self)
    )
    monkeypatch.setattr(module.sys, "platform", "freebsd14")
    monkeypatch.delattr(module.os, "sched_getaffinity", raising=False)
    assert peak_memory_bytes() > 50 * 2**20
    assert describe_environment()["cpu"]["usable"] == os.cpu_count()
