"""Memory in use, and releasing what is cached: to the device, on the CPU to the operating system.

Releasing is off by default, because the next step has to allocate the memory again: on CUDA with a
synchronization, on the CPU page by page.
"""

from __future__ import annotations

import ctypes
import gc
import platform

import torch

from hasten.runs.environment import peak_memory_bytes, reset_peak_memory


def describe_memory(device: torch.device, before: int = 0) -> str:
    """The peak memory of this process: on a GPU (on MPS the memory now), and of the host (RAM).

    before: the peak of the host until it was reset.
    """
    host = f"{max(before, peak_memory_bytes()) / 2**20:,.0f} MiB RAM"
    if device.type == "cpu":
        return host
    if device.type == "cuda":
        used = torch.cuda.max_memory_allocated(device)
    else:
        used = torch.mps.driver_allocated_memory()
    return f"{used / 2**20:,.0f} MiB GPU  {host}"


def peak_bytes(device: torch.device) -> int:
    """The peak memory that limits a run: of the device on CUDA, elsewhere of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return peak_memory_bytes()


def reset_peak(device: torch.device) -> None:
    """Reset :func:`peak_bytes` to the memory in use, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        reset_peak_memory()


def can_release(device: torch.device) -> bool:
    """Whether :func:`release_memory` has an effect."""
    return device.type in ("cuda", "mps") or platform.libc_ver()[0] == "glibc"


def release_memory(device: torch.device) -> None:
    """Collect garbage and release cached memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif can_release(device):
        ctypes.CDLL(None).malloc_trim(0)
