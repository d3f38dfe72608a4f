"""Which device a run uses, and the settings of torch that go with it."""

from __future__ import annotations

import os

import torch

from hasten.config import RunConfig
from hasten.errors import ConfigurationError


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA, then MPS, then the CPU; a device that is not there is refused."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(
            f"device: {name!r} is no device; use auto, cpu, cuda, cuda:1 or mps"
        ) from error
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(device.type, False):
        raise ConfigurationError(
            f"device: {name} is not available here (hasten doctor lists the devices); use auto"
        )
    return torch.device("cuda", 0) if name == "cuda" else device


def prepare_torch(config: RunConfig, device: torch.device) -> None:
    """Threads and determinism, for the whole process."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if config.training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
