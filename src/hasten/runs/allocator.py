"""Allocator and OpenMP settings that speed up training without changing results.

By default, glibc returns freed memory to the kernel and faults it in again, zeroed, in every step.
Keeping the pages makes element-wise operations on large tensors several times faster. Transparent
huge pages make the remaining page faults rare. Both need Linux with glibc.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Any

#: spins of a waiting OpenMP thread before it sleeps. libgomp's default is about 15 times higher:
#: equally fast on an idle machine, but on a busy one every parallel region waits for threads that
#: spin through their time slice (no epoch in 25 s instead of one in 4.4 s)
_SPIN_COUNT = "20000"

#: matrix products that oneDNN keeps prepared. Its default is 1024; in bf16, where every number of
#: rows is another product, they took 260 MiB of a run of KGAT and saved no time
_PREPARED_PRODUCTS = "64"

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_applied: dict[str, Any] = {}


def configure_process() -> None:
    """Keep freed pages, enable huge pages, limit spinning and prepared products. Idempotent.

    Call it before torch is imported, because torch reads the environment then.
    ``HASTEN_ALLOCATOR=off`` skips the allocator settings; existing values of ``GOMP_SPINCOUNT``,
    ``OMP_WAIT_POLICY`` and ``ONEDNN_PRIMITIVE_CACHE_CAPACITY`` are kept.
    """
    if _applied:
        return
    _applied.update(keep_pages=False, huge_pages=False)
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    # read when oneDNN computes first
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _PREPARED_PRODUCTS)
    if os.environ.get("HASTEN_ALLOCATOR") == "off" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    settings = ((_M_MMAP_MAX, 0), (_M_TOP_PAD, 256 << 20), (_M_TRIM_THRESHOLD, 2**31 - 1))
    accepted = [libc.mallopt(name, value) == 1 for name, value in settings]
    _applied["keep_pages"] = all(accepted)
    if "THP_MEM_ALLOC_ENABLE" in os.environ:
        _applied["huge_pages"] = os.environ["THP_MEM_ALLOC_ENABLE"] == "1"
    elif "torch" not in sys.modules:
        os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
        _applied["huge_pages"] = True


def allocator_report() -> dict[str, Any]:
    """The settings in effect: ``{"keep_pages": bool, "huge_pages": bool}``."""
    return dict(_applied) or {"keep_pages": False, "huge_pages": False}
