"""``hasten doctor``: describe the machine and test the installation."""

from __future__ import annotations

import os
import re
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


#: options of train that concern its run folder or its end
_OF_RUNS = ("out", "resume", "refit", "max_time", "memory_budget", "quiet")


class DoctorCommand(options.Command):
    """``doctor``, which with ``--step`` also takes the arguments and options of ``train``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words for ``train`` aside."""
        if "--step" in args:
            own_options = ("--step", "--json", "--debug", "--help", "-h")
            ctx.meta[__name__] = [word for word in args if word not in own_options]
            args = [word for word in args if word in own_options]
        return super().parse_args(ctx, args)


def doctor(
    context: typer.Context,
    step: bool = switch(
        "--step", "Measure training steps: --step MODEL [DATA] and the options of train."
    ),
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
    With --step, show where the time of a training step goes, and what would change it.

    hasten doctor

    hasten doctor --step sasrec events.csv --batch-size 256
    """
    if step:
        _measure_steps(context, json)
        return
    flags = options.configuration_flags(
        device=device, devices=devices, backend=backend, master_port=master_port
    )
    if flags and not distributed:
        raise UsageError(f"--{next(iter(flags)).replace('_', '-')} needs --distributed")
    options.prepare_process(several=distributed)
    report = _examine_processes(context, flags) if distributed else examine()
    if json:
        output.write_json(report)
    if distributed:
        from hasten.cli.diagnostics.collectives import lines  # noqa: PLC0415 - brings torch

        output.say("\n".join(lines(report)))
    else:
        _show(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _measure_steps(context: typer.Context, json: bool) -> None:
    """Measure the steps of a configuration, given as for ``train``."""
    root: Any = context.find_root().command
    command = root.commands["train"]
    words = context.meta[__name__]
    parameters = command.make_context(
        "hasten doctor --step", [*words], obj=["train", *words]
    ).params
    if useless := [name for name in _OF_RUNS if parameters[name]]:
        raise UsageError(f"--{useless[0].replace('_', '-')} has no effect with --step")
    options.prepare_process(several=True)
    from hasten.config_loading.build import build_config  # noqa: PLC0415 - only when needed

    config = build_config(
        parameters["model"],
        parameters["data"],
        parameters["config"],
        parameters["sets"] or [],
        options.configuration_flags(**parameters),
    )
    port = config.distributed.master_port
    options.maybe_start_processes(context, config.devices, parameters["devices"] is not None, port)
    from hasten.profiling.profile import profile_step  # noqa: PLC0415 - brings torch

    profile = profile_step(config)
    if json:
        output.write_json(profile)
    _show_steps(profile)


def _show_steps(profile: dict[str, Any]) -> None:
    output.say(
        f"{profile['model']} on {profile['data']}: {profile['device']}, processes "
        f"{profile['devices']}, "
        f"threads {profile['threads']}, {profile['precision']}, batch size {profile['batch_size']}"
    )
    for phase in profile["phases"]:
        parts = phase["milliseconds"]
        output.say(
            f"\nstep of {phase['name']}: {sum(parts.values()):.1f} ms (mean of "
            f"{phase['measured_steps']}), {phase['steps_per_epoch']:,} an epoch"
        )
        for part, milliseconds in parts.items():
            output.say(f"  {part:<15} {milliseconds:10.2f} ms")
    if (evaluation := profile["evaluation"]) is not None:
        output.say(
            f"\nevaluation: {evaluation['seconds']:.2f} s; a batch "
            f"{evaluation['batch_milliseconds']:.1f} ms, {evaluation['batches']:,} batches"
        )
    epoch = profile["epoch"]
    output.say(f"\nepoch with its evaluation: about {epoch['seconds']:.2f} s")
    for part, share in epoch["shares"].items():
        output.say(f"  {part:<15} {share:10.0%}")
    output.say(f"\nbottleneck: {profile['bottleneck']}")
    for each in profile["advice"]:
        output.say(f"  try {each['option']}: {each['reason']}")


def _examine_processes(context: typer.Context, flags: dict[str, Any]) -> dict[str, Any]:
    from hasten.config_loading.build import parse_changes  # noqa: PLC0415 - only when needed

    settings = parse_changes([], flags)
    distributed = {name.partition(".")[2]: value for name, value in settings.items() if "." in name}
    count = settings.get("devices", 2)
    options.maybe_start_processes(
        context, count, "devices" in flags, distributed.get("master_port", 0)
    )
    from hasten.cli.diagnostics.collectives import examine_processes  # noqa: PLC0415 - brings torch
    from hasten.config import DistributedOptions  # noqa: PLC0415 - only when needed

    return examine_processes(flags.get("device", "auto"), DistributedOptions(**distributed))


def examine() -> dict[str, Any]:
    """The complete report: ``{"ok", "environment", "torch", ..., "checks"}``."""
    import torch  # noqa: PLC0415 - slow to import

    from hasten.cli.diagnostics.selftest import run_checks  # noqa: PLC0415 - brings torch
    from hasten.data.sources.fetch import cache_folder  # noqa: PLC0415
    from hasten.runs.allocator import allocator_report  # noqa: PLC0415
    from hasten.runs.environment import (  # noqa: PLC0415
        cpu_features,
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


def memory() -> dict[str, int | None]:
    """Bytes of the machine's memory, of the available memory, and of the container's limit."""
    from hasten.runs.environment import system_text  # noqa: PLC0415 - only when needed

    free = re.search(r"^MemAvailable:\s*(\d+)", system_text("/proc/meminfo"), re.MULTILINE)
    limit = system_text("/sys/fs/cgroup/memory.max")
    return {
        "total_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "available_bytes": int(free[1]) * 1024 if free else None,
        "limit_bytes": int(limit) if limit.isdigit() else None,
    }


def _show(report: dict[str, Any]) -> None:
    environment, torch = report["environment"], report["torch"]
    cpu, threads = environment["cpu"], environment["threads"]
    devices = [f"{d['device']} {d['name']}" for d in environment["devices"]] or ["no accelerator"]
    features = [name for name, there in report["cpu_features"].items() if there]
    memory = [
        f"{name.removesuffix('_bytes')} {size / 2**30:.1f} GB"
        for name, size in report["memory"].items()
        if size
    ]
    allocator = (name.replace("_", " ") for name, on in report["allocator"].items() if on)
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
        "variables": ", ".join(f"{k}={v}" for k, v in report["variables"].items()) or "none set",
    }
    for name, text in lines.items():
        output.say(f"{name:<11} {text}")
    output.say()
    checks = report["checks"]
    width = max(len(check["name"]) for check in checks)
    for check in checks:
        output.say(f"{check['status']:<8} {check['name']:<{width}}  {check['detail']}")
    failed = sum(check["status"] == "fail" for check in checks)
    if failed:
        output.say(f"{failed} of {len(checks)} tests failed")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
