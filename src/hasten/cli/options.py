"""Options that several commands share, and the refusal of those whose work is not built."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.output import say
from hasten.errors import ProcessesError, UsageError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any configuration key; repeatable."),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Such as ndcg,hr,mrr; the first selects the checkpoint.",
        rich_help_panel="Evaluation",
    ),
]
TopkOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS", help="Their cuts, such as 10,20.", rich_help_panel="Evaluation"
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="auto, cpu, cuda, cuda:0 or mps.",
        rich_help_panel="Speed and memory",
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Processes to start on this machine, each on its own device.",
        rich_help_panel="Several processes",
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="nccl, gloo, or auto: by the device.",
        rich_help_panel="Several processes",
    ),
]
MasterPortOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Where they meet; 0: a free port.",
        rich_help_panel="Several processes",
    ),
]
CheckpointOption = Annotated[
    str, typer.Option(metavar="NAME", help="best, final, or a name such as epoch-0010.")
]
OutFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write .parquet, .csv or .json.")
]
OutFormatOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of --out: parquet, csv or json.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, last on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress, only warnings.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def prepare_process(*, several: bool = False) -> None:
    """What every command that computes does before it imports torch.

    several: whether the command works in several processes; others are refused there, rather than
    left to do the same work over and over. The allocator's settings only take effect before torch
    allocates.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1" and not several:
        raise UsageError(
            f"this command works in one process, but {world} were started (WORLD_SIZE): run it "
            "without torchrun"
        )
    if "WORLD_SIZE" in os.environ:
        # when a process dies, torch's own warnings in the others bury the one line that says so
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from hasten.runs.allocator import tune_process  # noqa: PLC0415 - only when it is needed

    tune_process()


def start_if_several(
    context: typer.Context, devices: int, given: bool = False, port: int = 0
) -> None:
    """Where several processes are wanted and none were started: start them, and end with them.

    They are given the same arguments as this one.
    """
    from hasten.distributed import launch  # noqa: PLC0415 - only when it is needed

    count = launch.processes_to_start(devices, given, port)
    if not count:
        return
    ended = launch.run_processes(context.find_root().obj, count, port)
    if ended.problem is not None:
        if not ended.first_spoke:
            raise ProcessesError(ended.problem)
        say(f"error: {ended.problem}")
    raise typer.Exit(ended.code)


def whole_number(name: str, text: str | None) -> int | None:
    """A number given for a flag that is needed before there is a configuration."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text.strip()):
        raise UsageError(f"--{name} {text}: expected a whole number from 1")
    return int(text)


def refuse_unavailable(memory_budget: str | None) -> None:
    """Options of the command line's contract whose work is not built: refused, never ignored."""
    if memory_budget is not None:
        raise UsageError(
            f"--memory-budget {memory_budget} is not available in this version: it trains in the "
            "memory that the batch needs; leave the option out"
        )


def given(**flags: Any) -> dict[str, Any]:
    """The flags that were given; the others keep what the file or the defaults say."""
    return {name: value for name, value in flags.items() if value is not None}


def seconds(text: str | None) -> float | None:
    """``90``, ``90s``, ``30m`` or ``1.5h`` in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip().lower())
    if match is None:
        raise UsageError(f"--max-time {text}: expected seconds, or a number with s, m or h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
