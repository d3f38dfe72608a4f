"""The device of a run, and torch's settings for it."""

from __future__ import annotations

import os
import platform

import torch

from hasten.distributed.launch import Launch
from hasten.errors import ConfigurationError
from hasten.runs.environment import cpu_flags


def resolve_device(name: str, launch: Launch | None = None) -> torch.device:
    """The device by name: ``auto`` is CUDA, then MPS, then the CPU. Raises ConfigurationError.

    launch: of several processes on a machine each takes the CUDA device of its local rank, among
    those that ``CUDA_VISIBLE_DEVICES`` shows.
    """
    if launch is not None and launch.world > 1:
        return _device_of_process(name, launch)
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


def _device_of_process(name: str, launch: Launch) -> torch.device:
    kind = "cuda" if name == "auto" and torch.cuda.is_available() else name
    kind = "cpu" if kind == "auto" else kind
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise ConfigurationError(
            f"device: {name} cannot be shared by {launch.world} processes; use cpu, or cuda, of "
            "which each process takes a device of its own (CUDA_VISIBLE_DEVICES chooses them)"
        )
    count = torch.cuda.device_count()
    if launch.local_world > count:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise ConfigurationError(
            f"{launch.local_world} processes on this machine need as many CUDA devices, but "
            f"{count} are seen (CUDA_VISIBLE_DEVICES {seen}): start fewer, or use --device cpu"
        )
    return torch.device("cuda", launch.local_rank)


def describe_device(device: torch.device) -> str:
    """The device of this process, for the log."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu, {torch.get_num_threads()} threads" if device.type == "cpu" else str(device)


def prepare_torch(
    threads: int | None, deterministic: bool, device: torch.device, launch: Launch | None = None
) -> None:
    """Set the CPU threads, the CUDA device and determinism of this process."""
    if threads is not None:
        torch.set_num_threads(threads)
    else:
        prepare_threads(launch)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def prepare_threads(launch: Launch | None) -> None:
    """Divide the cores among the processes of a machine, unless ``OMP_NUM_THREADS`` is set."""
    if launch is not None and launch.local_world > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // launch.local_world))


def cpu_computes_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices faster than float32 ones (AMX or AVX-512)."""
    return not cpu_flags().isdisjoint(("amx_bf16", "avx512_bf16"))


def cpu_computes_fp16() -> bool:
    """Whether this CPU has float16 arithmetic: AMX, AVX-512 or ARM's half-precision extension."""
    halves = ("amx_fp16", "avx512_fp16", "asimdhp")
    return not cpu_flags().isdisjoint(halves) or platform.machine() == "arm64"
