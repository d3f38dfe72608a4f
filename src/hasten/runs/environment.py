"""The environment of a run: versions, hardware, settings; and the memory of this process.

Environment variables are recorded only if an allow-list names them and neither their name nor their
value looks like a secret.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hasten.runs import __version__
from hasten.runs.allocator import allocator_report

_ALLOWED = re.compile(
    r"OMP_NUM_THREADS|OMP_WAIT_POLICY|GOMP_SPINCOUNT|MKL_NUM_THREADS|CUDA_VISIBLE_DEVICES|THP_MEM_ALLOC_ENABLE"
    r"|(NCCL|GLOO|ONEDNN|PYTORCH|TORCH|HASTEN)_[A-Z0-9_]+"
)
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS|PWD|CRED|AUTH|KEY|COOKIE|SESSION|SIGNATURE|CERT|PRIVATE|(^|_)(PAT|SAS)(_|$)"
)
_SECRET_VALUE = re.compile(
    r"://[^/\s]*@"  # a URL with a user name or password
    r"|-----BEGIN|\b(ghp|gho|ghs|github_pat|glpat|hf|sk|pk|xox[a-z])[_-]|\bAKIA|\beyJ"
    r"|(pass(word|wd)?|secret|token|key)\s*[=:]"
    r"|(?=[A-Za-z+_-]*[0-9])(?=[0-9+_-]*[A-Za-z])[A-Za-z0-9+_-]{32,}",  # long and random
    re.IGNORECASE,
)
_LONGEST_VALUE = 300
_CPU_FEATURES = (("avx2", "avx512f", "avx512_bf16", "amx_bf16"), ("asimd", "sve", "bf16"))


def describe_environment() -> dict[str, Any]:
    """Versions, system, devices, threads and settings as JSON values."""
    import numpy as np  # noqa: PLC0415 - slow to import, as is torch
    import torch  # noqa: PLC0415

    source = Path(__file__).parents[3]
    return {
        "versions": {
            "hasten": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "safetensors": _version("safetensors"),
        },
        "system": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "count": os.cpu_count(),
            "usable": usable_cpus(),
            "instructions": [name for name, there in cpu_features().items() if there],
        },
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "devices": accelerators(),
        "threads": {
            "within_operations": torch.get_num_threads(),
            "between_operations": torch.get_num_interop_threads(),
        },
        "allocator": {
            "library": _allocator(),
            **allocator_report(),
            "transparent_huge_pages": system_text("/sys/kernel/mm/transparent_hugepage/enabled")
            or None,
        },
        "commits": {
            "hasten": _git_commit([source]),
            "working_folder": _git_commit([Path.cwd(), *Path.cwd().parents]),
        },
        "variables": recorded_variables(os.environ),
    }


def recorded_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be recorded: on the allow-list and without secrets."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if _ALLOWED.fullmatch(name)
        and not _SECRET_NAME.search(name)
        and not _SECRET_VALUE.search(value)
        and len(value) <= _LONGEST_VALUE
        and value.isprintable()
    }


def peak_memory_bytes() -> int:
    """The peak resident memory of this process, or since :func:`reset_peak_memory`."""
    if match := re.search(r"^VmHWM:\s*(\d+)", system_text("/proc/self/status"), re.MULTILINE):
        return int(match[1]) * 1024
    return ru_maxrss_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.platform)


def ru_maxrss_bytes(value: int, system: str) -> int:
    """``ru_maxrss`` in bytes: macOS reports bytes, other systems kibibytes."""
    return value if system == "darwin" else value * 1024


def reset_peak_memory() -> bool:
    """Reset the peak to the current memory; False if the system cannot do this (macOS)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def cpu_features() -> dict[str, bool]:
    """Instruction sets that determine the speed of matrix products; empty if unknown."""
    flags = cpu_flags()
    arm = platform.machine() in ("aarch64", "arm64")
    return {name: name in flags for name in _CPU_FEATURES[arm]} if flags else {}


def cpu_flags() -> set[str]:
    """The instruction sets of the processor as Linux names them; empty if unknown."""
    text = system_text("/proc/cpuinfo")
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return {flag for line in lines for flag in line.partition(":")[2].split()}


def _version(package: str) -> str:
    from importlib.metadata import version  # noqa: PLC0415 - slow to import

    return version(package)


def usable_cpus() -> int | None:
    """The number of processors that this process may use; None if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu_model() -> str:
    text = system_text("/proc/cpuinfo")
    if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return match[1]
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return answer.stdout.strip() or platform.machine()
    return platform.machine()


def accelerators() -> list[dict[str, Any]]:
    """The devices other than the CPU, as JSON values."""
    import torch  # noqa: PLC0415

    devices: list[dict[str, Any]] = [
        {
            "device": f"cuda:{index}",
            "name": torch.cuda.get_device_properties(index).name,
            "memory_bytes": torch.cuda.get_device_properties(index).total_memory,
            "cuda": torch.version.cuda,
        }
        for index in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "name": platform.machine()})
    return devices


def _allocator() -> str:
    """The memory allocator, recognized by the loaded libraries."""
    loaded = system_text("/proc/self/maps")
    for name in ("jemalloc", "tcmalloc", "mimalloc"):
        if f"lib{name}" in loaded:
            return name
    return platform.libc_ver()[0] or "system"


def system_text(path: str) -> str:
    """The text of a file that the system writes; empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _git_commit(places: Iterable[Path]) -> str | None:
    """The commit checked out in the first of these folders that is a Git working tree.

    Reads Git's files: running git would execute what the repository configures.
    """
    root = next((place for place in places if (place / ".git").exists()), None)
    if root is None:
        return None
    try:
        folder = root / ".git"
        if folder.is_file():  # a linked work tree
            folder = root / folder.read_text().removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head
        name = head.removeprefix("ref:").strip()
        common = folder / "commondir"
        shared = folder / common.read_text().strip() if common.exists() else folder
        if (shared / name).exists():
            return (shared / name).read_text().strip()
        packed = (shared / "packed-refs").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    match = re.search(rf"^([0-9a-f]{{40,64}}) {re.escape(name)}$", packed, re.MULTILINE)
    return match[1] if match else None
