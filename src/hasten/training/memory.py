"""Release cached memory: to the device, or on the CPU to the operating system.

Off by default, because the next step has to allocate the memory again: on CUDA with a
synchronization, on the CPU page by page.
"""

from __future__ import annotations

import ctypes
import gc
import platform

import torch


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
