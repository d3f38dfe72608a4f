"""Giving memory that is free but kept back: to the device, or on the CPU to the system.

Off by default. Between two steps an allocator keeps what they both need; given back, it has to be
asked for again: on CUDA by a synchronisation and new allocations, on the CPU page by page.
"""

from __future__ import annotations

import ctypes
import gc
import platform

import torch


def can_release(device: torch.device) -> bool:
    """Whether :func:`release_memory` can give anything back."""
    return device.type in ("cuda", "mps") or platform.libc_ver()[0] == "glibc"


def release_memory(device: torch.device) -> None:
    """Collect garbage, and give back what is cached but free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif can_release(device):
        ctypes.CDLL(None).malloc_trim(0)
