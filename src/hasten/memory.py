"""The memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def memory_bytes() -> int:
    """The memory of this machine, or of the control group of this process."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = Path("/sys/fs/cgroup/memory.max")
    limit = group.read_text().strip() if group.exists() else "max"
    return min(physical, int(limit)) if limit.isdigit() else physical
