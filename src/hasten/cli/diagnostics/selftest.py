"""The checks of ``hasten doctor``: whether this machine computes correctly what training needs."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from hasten.build import build_model
from hasten.config import InteractionOptions, RunConfig
from hasten.data.interactions.load import load_dataset
from hasten.errors import HastenError
from hasten.registry import load_model
from hasten.runs.environment import accelerators

Status = Literal["ok", "warning", "fail"]
_SIDE = 512
#: a product that takes more seconds is emulated
_SLOW = 0.3
_USERS, _ITEMS, _EVENTS, _STEPS = 20, 12, 8, 30


@dataclass(frozen=True)
class Check:
    """One test: its name, its status, and what was found or what to do."""

    name: str
    status: Status
    detail: str


def run_checks(cache: Path) -> list[Check]:
    """Every test, in the order of what builds on what. cache: where fetched data would go."""
    tests: dict[str, Callable[[], Check]] = {
        "matrix products": check_products,
        **{f"device {d['device']}": partial(check_device, d["device"]) for d in accelerators()},
        "training step": check_training,
        "compiler": check_compiler,
        "working folder": partial(check_writable, "working folder", Path.cwd()),
        "cache folder": partial(check_writable, "cache folder", cache),
    }
    return [_guarded(name, test) for name, test in tests.items()]


def _guarded(name: str, test: Callable[[], Check]) -> Check:
    try:
        return test()
    except (HastenError, RuntimeError, ImportError, OSError, ValueError) as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}")


def check_products() -> Check:
    """Compare float32 with float64 products, and the speed of bf16 with that of float32."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(_SIDE, _SIDE, generator=generator, dtype=torch.float64)
    expected = exact @ exact.T
    left = exact.float()
    error = float((left @ left.T - expected).abs().max() / expected.abs().max())
    rates = {dtype: _rate(left.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}
    ratio = rates[torch.bfloat16] / rates[torch.float32]
    words = "faster: --precision bf16 pays" if ratio > 1.2 else "not faster: stay with fp32"
    if ratio < 0.5:
        words = "emulated: never choose --precision bf16 here"
    detail = (
        f"fp32 {rates[torch.float32]:.0f} GFLOP/s, bf16 {rates[torch.bfloat16]:.3g} GFLOP/s "
        f"({ratio:.2g} times, {words}), relative error {error:.0e}"
    )
    return Check("matrix products", "ok" if error < 1e-4 else "fail", detail)


def _rate(matrix: torch.Tensor) -> float:
    """GFLOP/s of a square product: the best of several, after a warm-up.

    If it takes a second, it is emulated, and one is enough.
    """
    best = float("inf")
    for repeat in range(6):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds = time.perf_counter() - start
        if repeat or seconds > _SLOW:
            best = min(best, seconds)
        if seconds > _SLOW:
            break
    return 2 * _SIDE**3 / best / 1e9


def check_device(name: str) -> Check:
    """Compare a product on the device with that on the CPU."""
    left = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    on_device = (left.to(name) @ left.to(name)).cpu()
    same = torch.allclose(on_device, left @ left, rtol=1e-2, atol=1e-2)
    detail = "computes as the CPU does" if same else "computes something else than the CPU"
    return Check(f"device {name}", "ok" if same else "fail", detail)


def check_training() -> Check:
    """Whether a tiny SASRec learns twenty users who all walk round the same circle of items."""
    model_options = {"name": "sasrec", "width": 16, "dropout": 0.0}
    options = load_model("sasrec").Options.model_validate(model_options)
    config = RunConfig.model_validate({"model": options})
    steps = np.arange(_USERS)[:, None] + np.arange(_EVENTS)
    events = {"user_id": np.repeat(np.arange(_USERS), _EVENTS), "item_id": (steps % _ITEMS).ravel()}
    dataset = load_dataset(InteractionOptions(), seed=0, table=events)
    model = build_model(config, dataset, torch.device("cpu"))
    (phase,) = model.phases(dataset, config.training)
    optimizer = torch.optim.Adam(phase.parameters(), lr=0.01)
    losses = []
    for step in range(_STEPS):
        batch = phase.plan(0, step, 0)
        (term,) = phase.terms((), batch, batch.ids)
        loss = term.numerator / term.denominator
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    learns = bool(np.isfinite(losses).all()) and losses[-1] < losses[0] / 2
    detail = f"{_STEPS} steps of a tiny SASRec: loss {losses[0]:.2f} to {losses[-1]:.2f}"
    return Check("training step", "ok" if learns else "fail", detail)


def check_compiler() -> Check:
    """What torch.compile needs on the CPU. Training works without it."""
    configured = os.environ.get("CXX")
    compiler = next(
        (c for c in (configured, "g++", "clang++", "c++") if c and shutil.which(c)), None
    )
    if compiler:
        return Check("compiler", "ok", f"{shutil.which(compiler)}, for --compile on the CPU")
    return Check("compiler", "warning", "none (g++ or clang++): --compile cannot work on the CPU")


def check_writable(name: str, folder: Path) -> Check:
    """Whether a file can be created in this folder, or the folder itself if it does not exist."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"hasten")
    except OSError as error:
        return Check(name, "warning", f"{existing}: cannot be written to: {error.strerror}")
    free = shutil.disk_usage(existing).free / 2**30
    status: Status = "ok" if free > 1 else "warning"
    return Check(name, status, f"{folder}: writable, {free:.1f} GB free")
