"""Options that several commands share, and helpers that parse them."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from hasten.cli.output import say
from hasten.errors import ProcessesError, UsageError, did_you_mean

TRAINING, SPEED, EVALUATION = "Training", "Speed and memory", "Evaluation"
PROCESSES = "Several processes"
_PAIR = re.compile(r"[a-z_]+(\.[^\s.=]+)+=")


def model_names() -> list[str]:
    """The names of the models, for completion in a shell."""
    from hasten.registry import model_entries  # noqa: PLC0415 - reads the installed packages

    return [entry.name for entry in model_entries()]


def argument(metavar: str, text: str, *, default: Any = None, complete: Any = None) -> Any:
    """A positional argument; default: ``...`` if it is required; complete: lists its values."""
    return typer.Argument(default, metavar=metavar, help=text, autocompletion=complete)


def option(
    metavar: str | None, text: str, panel: str | None = None, *names: str, default: Any = None,
    min: int | None = None,
) -> Any:  # fmt: skip
    """An option with a value. metavar: how help shows the value; panel: its group in help."""
    return typer.Option(default, *names, metavar=metavar, help=text, rich_help_panel=panel, min=min)


def switch(names: str, text: str, panel: str | None = None, *, default: bool | None = False) -> Any:
    """An option without a value; names: ``--on``, or ``--on/--off``."""
    return typer.Option(default, names, help=text, rich_help_panel=panel)


RUN = argument("RUN", "The run folder.", default=...)
SETS = option("KEY=VALUE", "Set one or more configuration keys; repeatable.", None, "--set")
METRICS = option(
    "NAMES", "Metrics, such as ndcg,hr,mrr; the first selects the checkpoint.", EVALUATION
)
TOPK = option("NUMBERS", "Cutoffs of the metrics, such as 10,20.", EVALUATION)
LIKE = option(
    "NAME",
    "Evaluate as another library does: recbole, rectools, bert4rec, kgat, mmrec, libkge or pykeen.",
    EVALUATION,
)
FORMAT = option("NAME", "Format of the data, if it is not recognized.")
DEVICE = option("NAME", "auto, cpu, cuda, cuda:0 or mps.", SPEED)
THREADS = option("N", "CPU threads per process.", SPEED)
DEVICES = option("N", "Processes to start on this machine, each on its own device.", PROCESSES)
BACKEND = option("NAME", "nccl, gloo, or auto: nccl on CUDA, else gloo.", PROCESSES)
MASTER_PORT = option("N", "Port for the processes to connect to; 0: a free port.", PROCESSES)
CHECKPOINT = option(
    "NAME", "Checkpoint: best, final, or a name such as epoch-0010.", default="best"
)
PART = option("NAME", "Evaluate only this part: valid or test.", EVALUATION)
OUT_FILE = option("FILE", "Write the result to a .parquet, .csv or .json file.")
OUT_FORMAT = option("NAME", "Format of the --out file: parquet, csv or json.")
JSON = switch("--json", "Print one JSON object on stdout.")
QUIET = switch("--quiet", "Show no progress, only warnings.")
DEBUG = switch("--debug", "Show the traceback of an error.")


class Command(TyperCommand):
    """A command that accepts several pairs after one ``--set``."""

    def hint(self, option: str, _context: Any) -> str:
        """``"; did you mean '--x'?"`` for the nearest of the options, or an empty text."""
        shown = [each for each in self.params if not getattr(each, "hidden", False)]
        names = (name for each in shown for name in (*each.opts, *each.secondary_opts))
        dashed = "--" + option.lstrip("-").replace("_", "-")
        return did_you_mean(dashed, [name for name in names if name.startswith("-")])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat ``--set`` before every further ``key.path=value``."""
        words: list[str] = []
        for word in args:
            continues_set = words[-2:-1] == ["--set"] and _PAIR.match(word)
            words += ["--set", word] if continues_set else [word]
        return super().parse_args(ctx, words)


def with_options_of(command: Any, without: Collection[str], **more: Any) -> Callable[[Any], Any]:
    """A decorator for ``function(**given)``: a command with the options of another one.

    without: names of options that it does not have; more: its own ones (texts) by name.
    """
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=declaration, annotation=str | None
        )
        for name, declaration in more.items()
    ]
    known = inspect.signature(command, eval_str=True).parameters.values()

    def decorate(function: Any) -> Any:
        inherited = [parameter for parameter in known if parameter.name not in without]
        function.__signature__ = inspect.Signature([*inherited, *added])
        return function

    return decorate


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
        # when a process dies, torch's warnings in the others hide the line that says so
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from hasten.runs.allocator import configure_process  # noqa: PLC0415 - only when it is needed

    configure_process()


def maybe_start_processes(
    context: typer.Context, devices: int, given: bool = False, port: int = 0
) -> None:
    """Start the processes of --devices with this command's arguments, and exit with their code.

    Does nothing for one process, or if a launcher has started the processes.
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
    """The whole number of a flag that is needed before the configuration is built."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text.strip()):
        raise UsageError(f"--{name} {text}: expected a whole number from 1")
    return int(text)


def one_of(name: str, value: str | None, known: tuple[str, ...]) -> None:
    """Raise UsageError if the value of a flag is not one of the known ones."""
    if value is not None and value not in known:
        raise UsageError(f"--{name} {value}: must be one of {', '.join(known)}")


def configuration_flags(**arguments: Any) -> dict[str, Any]:
    """The configuration flags among these arguments, without those that are None.

    Keys that are not given keep the value of the file or the default.
    """
    from hasten.config import RunConfig  # noqa: PLC0415 - brings pydantic
    from hasten.config_loading.build import EVERYDAY  # noqa: PLC0415

    names = {*EVERYDAY, *RunConfig.model_fields, "metrics", "topk"} - {"model", "data"}
    flags = {k: value for k, value in arguments.items() if k in names and value is not None}
    if "max_time" in flags:
        from hasten.config_loading.units import parse_seconds  # noqa: PLC0415

        flags["max_time"] = parse_seconds("max-time", flags["max_time"])
    return flags


def check_export(out: Path | None, format: str | None) -> None:
    """Refuse an --out file that cannot be written, and --format without --out."""
    if out is None:
        if format is not None:
            raise UsageError("--format is the format of --out FILE, which is not given")
        return
    from hasten.inference import export  # noqa: PLC0415 - brings pyarrow

    export.check_target(out, format)
