"""What of the machine goes into a result: hardware and settings, no names and no paths."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: the highest load under which a measurement is recorded
QUIET = 0.5

#: glibc keeps its pages and asks for huge ones; for speed runs, the same on every side
KEEP_PAGES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "THP_MEM_ALLOC_ENABLE": "1",
}


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel and the settings that speed depends on."""
    cpu = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    flags = (_field("/proc/cpuinfo", "flags") or "").split()
    memory = _field("/proc/meminfo", "MemTotal")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "instructions": [
            name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags
        ],
        "memory_gib": round(int(memory.split()[0]) / 2**20, 1) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": _selected(_text("/sys/kernel/mm/transparent_hugepage/enabled")),
    }


def commit() -> str | None:
    """The commit that is measured, with a + where tracked files differ from it.

    A copy without its history is told the commit by the variable HASTEN_COMMIT.
    """
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("HASTEN_COMMIT")
    return name + ("+" if changed else "")


def load() -> float | None:
    """The load of the last minute: above QUIET before a run, something else is running."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def why_not_recorded(seconds: float = 300.0) -> str | None:
    """Why a measurement that starts now cannot be recorded; None if it can.

    Waits so long for the load of the last minute to fall, which a measurement itself raises.
    """
    name = commit()
    if name is None:
        return "this is not a checkout of git"
    if name.endswith("+"):
        return "files under src or bench differ from the last commit"
    deadline = time.monotonic() + seconds
    while (found := load()) is not None and found > QUIET:
        if time.monotonic() >= deadline:
            return f"the machine is not quiet: a load of {found}, above {QUIET}"
        time.sleep(5)
    return None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _field(path: str, name: str) -> str | None:
    for line in (_text(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _selected(text: str | None) -> str | None:
    """The bracketed word of ``always [madvise] never``."""
    return text.partition("[")[2].partition("]")[0] if text else None
