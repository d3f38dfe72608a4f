"""Options that several commands share, and the refusal of those whose work is not built."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.errors import UsageError

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
CheckpointOption = Annotated[
    str, typer.Option(metavar="NAME", help="best, final, or a name such as epoch-0010.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, last on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress, only warnings.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def prepare_process() -> None:
    """What every command that computes does before it imports torch.

    Several processes are not built yet: they are refused, rather than left to race. The
    allocator's settings only take effect before torch allocates.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1":
        raise UsageError(
            f"{world} processes (WORLD_SIZE) are not available in this version: "
            "run hasten without torchrun, in one process"
        )
    from hasten.training.machine import tune_process  # noqa: PLC0415 - only when it is needed

    tune_process()


def refuse_unavailable(
    devices: str, backend: str, master_port: str | None, lr_scaling: str, memory_budget: str | None
) -> None:
    """Options of the command line's contract whose work is not built: refused, never ignored."""
    given = {
        f"--devices {devices}": devices != "1",
        f"--backend {backend}": backend != "auto",
        f"--master-port {master_port}": master_port is not None,
        f"--lr-scaling {lr_scaling}": lr_scaling != "none",
        f"--memory-budget {memory_budget}": memory_budget is not None,
    }
    refused = [name for name, wanted in given.items() if wanted]
    if refused:
        verb = "is" if len(refused) == 1 else "are"
        raise UsageError(
            f"{', '.join(refused)} {verb} not available in this version: it trains in one "
            "process on one device, in the memory that the batch needs; leave the option out"
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
