"""The peak memory that a plan predicts against that of the run, on a device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.plan_accuracy import run_hasten

#: a predicted peak may be off by this share of the measured one
PEAK = 0.15
#: sizes whose activations are most of the memory
SETTINGS = {
    "tisasrec": ("model.width=64", "training.batch_size=1024"),
    "kgat": ("model.width=64", "training.batch_size=1024"),
    "conve": ("model.width=200", "training.batch_size=4096"),
    "hgt": ("model.width=128", "model.hidden=128", "training.batch_size=2048"),
}


def plan_peaks(device: torch.device, scratch: Path, quick: bool = False) -> dict[str, Any]:
    """Runs with a budget that none needs: they are planned first and keep what was predicted.

    quick: the first model only.
    """

    def compared(model: str) -> dict[str, float]:
        settings = SETTINGS[model]
        arguments = ["train", model, *(f"--set={each}" for each in settings), "--epochs", "2"]
        arguments += ["--device", str(device), "--memory-budget", "10000GB", "--quiet", "--json"]
        plan = run_hasten(1, *arguments, "--out", str(scratch / f"plan-{model}"))["plan"]
        predicted, peak = (plan[kind]["peak_memory_bytes"] for kind in ("predicted", "measured"))
        return {"predicted": predicted, "measured": peak, "error": predicted / peak - 1}

    models = list(SETTINGS)[: 1 if quick else None]
    with ThreadPoolExecutor() as together:  # processes of their own, whose start takes most time
        found = dict(zip(models, together.map(compared, models), strict=True))
    off = [model for model, each in found.items() if abs(each["error"]) > PEAK]
    problem = {"error": f"off by more than {PEAK:.0%}: {', '.join(off)}"} if off else {}
    return {"passed": not off, "models": found, **problem}
