"""Options that several commands share, and helpers that parse them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.output import say
from hasten.errors import ProcessesError, UsageError

TRAINING, SPEED, EVALUATION = "Training", "Speed and memory", "Evaluation"
PROCESSES = "Several processes"


def flag(metavar: str, text: str, panel: str | None = None, *, min: int | None = None) -> Any:
    """An option with a value. metavar: how help shows the value; panel: its group in help."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, min=min)


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any configuration key; repeatable."),
]
MetricsOption = Annotated[
    str | None,
    flag("NAMES", "Metrics, such as ndcg,hr,mrr; the first selects the checkpoint.", EVALUATION),
]
TopkOption = Annotated[
    str | None, flag("NUMBERS", "Cutoffs of the metrics, such as 10,20.", EVALUATION)
]
DeviceOption = Annotated[str | None, flag("NAME", "auto, cpu, cuda, cuda:0 or mps.", SPEED)]
DevicesOption = Annotated[
    str | None,
    flag("N", "Processes to start on this machine, each on its own device.", PROCESSES),
]
BackendOption = Annotated[
    str | None, flag("NAME", "nccl, gloo, or auto: nccl on CUDA, else gloo.", PROCESSES)
]
MasterPortOption = Annotated[
    str | None, flag("N", "Port for the processes to connect to; 0: a free port.", PROCESSES)
]
CheckpointOption = Annotated[
    str, flag("NAME", "Checkpoint: best, final, or a name such as epoch-0010.")
]
OutFileOption = Annotated[
    Path | None, flag("FILE", "Write the result to a .parquet, .csv or .json file.")
]
OutFormatOption = Annotated[
    str | None, flag("NAME", "Format of the --out file: parquet, csv or json.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress, only warnings.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def prepare_process(*, several: bool = False) -> None:
    """Prepare a command that computes; call it before torch is imported.

    several: whether the command supports several processes; the others raise UsageError under
    torchrun, since every process would repeat the same work. The allocator's settings take effect
    only before torch allocates.
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
    """Start the processes of --devices with this command's arguments, and exit with their code.

    Does nothing for one process, or where a launcher has started them.
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
    """The number of a flag that is needed before there is a configuration."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text.strip()):
        raise UsageError(f"--{name} {text}: expected a whole number from 1")
    return int(text)


def refuse_unavailable(memory_budget: str | None) -> None:
    """Refuse options that this version does not implement."""
    if memory_budget is not None:
        raise UsageError(
            f"--memory-budget {memory_budget} is not available in this version: leave it out and "
            "use --accumulate or --recompute to reduce memory"
        )


def given(**flags: Any) -> dict[str, Any]:
    """The flags that were given; the others keep the value of the file or the default."""
    return {name: value for name, value in flags.items() if value is not None}


def check_export(out: Path | None, format: str | None) -> None:
    """Refuse an --out file that cannot be written, and --format without --out."""
    if out is None:
        if format is not None:
            raise UsageError("--format is the format of --out FILE, which is not given")
        return
    from hasten.inference import export  # noqa: PLC0415 - brings pyarrow

    export.check_target(out, format)


def seconds(text: str | None) -> float | None:
    """``90``, ``90s``, ``30m`` or ``1.5h`` in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip().lower())
    if match is None:
        raise UsageError(f"--max-time {text}: expected seconds, or a number with s, m or h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
