"""``hasten doctor``: describe the machine and test the installation."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import typer

from hasten.cli import options, output
from hasten.cli.options import switch
from hasten.errors import UsageError

#: environment variables that hasten and its libraries read
VARIABLES = (
    "HASTEN_ALLOCATOR", "HASTEN_CACHE", "HASTEN_OFFLINE", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "THP_MEM_ALLOC_ENABLE", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME",
    "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
_CPU_FEATURES = (("avx2", "avx512f", "avx512_bf16", "amx_bf16"), ("asimd", "sve", "bf16"))


def doctor(
    context: typer.Context,
    distributed: bool = switch(
        "--distributed", "Test several processes and the communication between them."
    ),
    device: str | None = options.DEVICE,
    devices: str | None = options.DEVICES,
    backend: str | None = options.BACKEND,
    master_port: str | None = options.MASTER_PORT,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Describe this machine and test the installation.

    The exit code is 1 if a test fails.
    """
    flags = options.given(device=device, devices=devices, backend=backend, master_port=master_port)
    if flags and not distributed:
        raise UsageError(f"--{next(iter(flags)).replace('_', '-')} needs --distributed")
    options.prepare_process(several=distributed)
    found = _examine_processes(context, flags) if distributed else examine()
    if json:
        output.write_json(found)
    if distributed:
        from hasten.cli.collectives import lines  # noqa: PLC0415 - brings torch

        output.say("\n".join(lines(found)))
    else:
        _show(found)
    if not found["ok"]:
        raise typer.Exit(1)


def _examine_processes(context: typer.Context, flags: dict[str, Any]) -> dict[str, Any]:
    from hasten.config_loading.build import parse_changes  # noqa: PLC0415 - only when needed

    settings = parse_changes([], flags)
    found = {name.partition(".")[2]: value for name, value in settings.items() if "." in name}
    count = settings.get("devices", 2)
    options.start_if_several(context, count, "devices" in flags, found.get("master_port", 0))
    from hasten.cli.collectives import examine_processes  # noqa: PLC0415 - brings torch
    from hasten.config import DistributedOptions  # noqa: PLC0415 - only when needed

    return examine_processes(flags.get("device", "auto"), DistributedOptions(**found))


def examine() -> dict[str, Any]:
    """The complete report: ``{"ok", "environment", "torch", ..., "checks"}``."""
    import torch  # noqa: PLC0415 - slow to import

    from hasten.cli.selftest import run_checks  # noqa: PLC0415 - brings torch
    from hasten.data.sources.fetch import cache_folder  # noqa: PLC0415
    from hasten.runs.allocator import allocator_report  # noqa: PLC0415
    from hasten.runs.environment import (  # noqa: PLC0415
        describe_environment,
        recorded_variables,
    )

    checks = run_checks(cache_folder())
    environment = describe_environment()
    return {
        "ok": all(check.status != "fail" for check in checks),
        "environment": environment,
        "cpu_features": cpu_features(),
        "torch": {
            "build": "CUDA " + torch.version.cuda if torch.version.cuda else "CPU",
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
            "openmp": torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
        },
        "allocator": allocator_report(),
        "memory": memory(),
        "variables": {
            **{name: os.environ[name] for name in VARIABLES if name in os.environ},
            **{k: v for k, v in recorded_variables(os.environ).items() if k.startswith("NCCL_")},
        },
        "checks": [vars(check) for check in checks],
    }


def cpu_features() -> dict[str, bool]:
    """Instruction sets that determine the speed of matrix products; empty if unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    flags = {
        flag
        for line in text.splitlines()
        if line.startswith(("flags", "Features"))
        for flag in line.partition(":")[2].split()
    }
    arm = platform.machine() in ("aarch64", "arm64")
    return {name: name in flags for name in _CPU_FEATURES[arm]}


def memory() -> dict[str, int | None]:
    """Bytes of the machine's memory, of the available memory, and of the container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free, limit = None, None
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    cgroup = Path("/sys/fs/cgroup/memory.max")
    if cgroup.exists() and (text := cgroup.read_text(encoding="utf-8").strip()).isdigit():
        limit = int(text)
    return {"total_bytes": total, "available_bytes": free, "limit_bytes": limit}


def _show(found: dict[str, Any]) -> None:
    environment, torch = found["environment"], found["torch"]
    cpu, threads = environment["cpu"], environment["threads"]
    devices = [f"{d['device']} {d['name']}" for d in environment["devices"]] or ["no accelerator"]
    features = [name for name, there in found["cpu_features"].items() if there]
    memory = [
        f"{name.removesuffix('_bytes')} {size / 2**30:.1f} GB"
        for name, size in found["memory"].items()
        if size
    ]
    allocator = (name.replace("_", " ") for name, on in found["allocator"].items() if on)
    versions = environment["versions"]
    lines = {
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "system": environment["system"],
        "cpu": f"{cpu['model']}, {cpu['usable']} of {cpu['count']} usable",
        "features": f"{', '.join(features) or 'unknown'}; torch uses {torch['cpu_capability']}",
        "threads": f"{threads['within_operations']} within an operation, "
        f"{threads['between_operations']} between operations",
        "memory": ", ".join(memory),
        "allocator": f"{', '.join(allocator) or 'as the system has it'} "
        f"({environment['allocator']['library']})",
        "torch": f"{torch['build']} build, mkldnn {_yes(torch['mkldnn'])}, "
        f"openmp {_yes(torch['openmp'])}",
        "devices": ", ".join(devices),
        "variables": ", ".join(f"{k}={v}" for k, v in found["variables"].items()) or "none set",
    }
    for name, text in lines.items():
        output.say(f"{name:<11} {text}")
    output.say()
    checks = found["checks"]
    width = max(len(check["name"]) for check in checks)
    for check in checks:
        output.say(f"{check['status']:<8} {check['name']:<{width}}  {check['detail']}")
    failed = sum(check["status"] == "fail" for check in checks)
    if failed:
        output.say(f"{failed} of {len(checks)} tests failed")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
