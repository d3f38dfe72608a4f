"""The path of several processes on a device: a process group of one, and all devices together.

Sharded tables too, in a group of one and, if there are two devices, of two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from bench.gpu_training import Synthetic
from bench.machine import ROOT

SECONDS = 240


def group_of_one(device: torch.device, scratch: Path, size: Synthetic) -> dict[str, Any]:
    """One process in a group of its own (nccl on CUDA) trains to the same bits as one without.

    Under ``deterministic``, and without the padding of steps in CUDA graphs, which a group has not.
    """
    data = scratch / "synthetic.csv"
    size.write(data)
    alone = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    digests, effective = [], {}
    for name, variables in (("plain", {}), ("group", alone)):
        out = scratch / f"processes-{name}"
        command = ["train", "sasrec", str(data), "--out", str(out), "--json"]
        command += ["--device", device.type, "--epochs", "1", "--deterministic", "--quiet"]
        command += ["--set", "training.capture=never"]
        effective = json.loads(_hasten(command, variables))["effective"]
        manifest = json.loads((out / "final" / "manifest.json").read_text())
        digests.append(manifest["files"]["weights.safetensors"]["sha256"])
    expected = "nccl" if device.type == "cuda" else "gloo"
    passed = digests[0] == digests[1] and effective["backend"] == expected
    outcome = {"passed": passed, "sha256": digests, "backend": effective["backend"]}
    return outcome if passed else {**outcome, "error": f"weights {digests}, {effective['backend']}"}


def collectives(device: torch.device) -> dict[str, Any]:
    """Sums and broadcasts between as many processes as there are devices, their time and rate."""
    count = torch.cuda.device_count() if device.type == "cuda" else 2
    command = ["doctor", "--distributed", "--device", device.type, "--json"]
    variables = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"} if count == 1 else {}
    command += [] if count == 1 else ["--devices", str(count)]
    found = json.loads(_hasten(command, variables))
    return {
        "passed": found["ok"],
        "processes": found["world"],
        "backend": found["backend"],
        "sums": found["sums"],
    }


def sharded_tables(device: torch.device) -> dict[str, Any]:
    """Sharded tables train as whole ones do, and have their metrics (:mod:`.gpu_sharded`)."""
    devices = torch.cuda.device_count() if device.type == "cuda" else 2
    command = ["-m", "bench.gpu_sharded", "--device", device.type]
    command += ["--steps", "40" if device.type == "cuda" else "6"]
    found = {}
    for world in (1, 2)[:devices]:
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={world}", "--standalone"]
        found[f"processes: {world}"] = json.loads(_python([*launcher, *command], {}))
    backend = "nccl" if device.type == "cuda" else "gloo"
    passed = all(each["passed"] and each["backend"] == backend for each in found.values())
    return {"passed": passed, "runs": found}


def _hasten(arguments: list[str], variables: dict[str, str]) -> str:
    """What the command prints on stdout."""
    return _python(["-m", "hasten", *arguments], variables)


def _python(arguments: list[str], variables: dict[str, str]) -> str:
    """The last line that a module prints on stdout."""
    kept = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=kept | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        told = " ".join(arguments[:3])
        raise RuntimeError(f"{told} ended with {done.returncode}: {done.stderr}")
    return done.stdout.splitlines()[-1]
