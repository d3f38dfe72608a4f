"""The command ``hasten``: its subcommands, and errors as messages and exit codes.

Exit codes: 0 done; 1 failed; 2 bad usage, configuration or data; 129/130/143 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from hasten import console
from hasten.cli import (
    compare,
    embed,
    evaluate,
    export,
    import_weights,
    influence,
    options,
    output,
    plan,
    predict,
    recipes,
    recommend,
    report,
    resume,
    serve,
    train,
    tune,
    update,
)
from hasten.cli.data import inspect as data
from hasten.cli.data import make, prepare
from hasten.cli.diagnostics import doctor, verify
from hasten.errors import (
    DISK_FULL,
    HastenError,
    Interrupted,
    ProcessesError,
    UsageError,
    did_you_mean,
    is_out_of_memory,
)

# The base of every error of the command line's grammar, in each release of typer.
_GrammarError: Any = typer.BadParameter.__mro__[2]


class _Commands(TyperGroup):
    """A group of commands that knows the nearest name of an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            raise UsageError(
                f"unknown command {args[0]!r} (there are {', '.join(names)})"
                f"{did_you_mean(args[0], names)}"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


#: how the shells ask for completions, and those shells
_COMPLETE = "_HASTEN_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


def _print_completion(shell: str | None) -> None:
    if shell is not None:
        options.one_of("print-completion", shell, _SHELLS)
        script = _completion().get_completion_script(
            prog_name="hasten", complete_var=_COMPLETE, shell=shell
        )
        sys.stdout.write(f"{script}\n")
        raise typer.Exit


def _complete(command: Any, given: list[str], instruction: str) -> int:
    """Print the completions of the words that the shell passes in environment variables."""
    typer_completion = _completion()
    typer_completion.completion_init()
    context = {"obj": given}
    exit_code = typer_completion.shell_complete(command, context, "hasten", _COMPLETE, instruction)
    return int(exit_code)


def _completion() -> Any:
    from typer import completion  # noqa: PLC0415 - only when a shell asks

    return completion


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - slow to import

        sys.stdout.write(f"hasten {version('hasten')}\n")
        raise typer.Exit


@app.callback()
def _hasten(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
    _completion: Annotated[
        str | None,
        typer.Option(
            "--print-completion",
            metavar="SHELL",
            help="Print the completion script of bash, zsh or fish and exit.",
            is_eager=True,
            callback=_print_completion,
        ),
    ] = None,
) -> None:
    """Train recommender models fast, in the memory you have, on the device you have.

    Begin with: hasten train sasrec
    """


app.command(cls=train.TrainCommand)(train.train)
for command in (
    resume.resume, evaluate.evaluate, compare.compare, report.report, tune.tune,
    recommend.recommend, predict.predict, influence.influence, embed.embed, embed.vectors,
    embed.similar, export.export, serve.serve, verify.verify, update.update,
):  # fmt: skip
    app.command(cls=options.Command)(command)
app.command(cls=train.TrainCommand)(plan.plan)
app.command("check-embeddings", cls=options.Command)(embed.check)
app.command("import", cls=options.Command)(import_weights.import_)
app.command("import-config", cls=options.Command)(import_weights.import_config)
app.command(cls=doctor.DoctorCommand)(doctor.doctor)
data.app.command(cls=options.Command)(make.features)
data.app.command(cls=options.Command)(make.make)
data.app.command(cls=options.Command)(prepare.prepare)
app.add_typer(data.app, name="data", cls=_Commands)
app.add_typer(recipes.app, name="recipes", cls=_Commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error ends here."""
    console.open_streams()
    words = _without_local_rank(sys.argv[1:] if arguments is None else arguments)
    code = _invoke(words)
    try:
        sys.stdout.flush()
    except OSError as error:
        console.silence(sys.stdout)
        if code == 0 and not isinstance(error, BrokenPipeError):
            output.say(f"error: standard output cannot be written: {error.strerror}")
        return code or 1
    return code


def _without_local_rank(arguments: Sequence[str]) -> list[str]:
    """The arguments without what torch.distributed.launch puts before them, made a variable."""
    remaining = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in ("--local-rank", "--local_rank") and value:
            os.environ.setdefault("LOCAL_RANK", value)
        else:
            remaining.append(argument)
    return remaining


def _invoke(given: list[str]) -> int:
    try:
        command = typer.main.get_command(app)
        if instruction := os.environ.get(_COMPLETE):
            return _complete(command, given, instruction)
        with command.make_context("hasten", given or ["--help"], obj=given) as context:
            command.invoke(context)
    except typer.Exit as done:
        return int(done.exit_code)
    except BrokenPipeError:  # whoever read our output has gone: nothing more can be said there
        console.silence(sys.stdout)
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error ends here
        return _explain(error, as_json="--json" in given, debug="--debug" in given)
    return 0


def _explain(error: BaseException, as_json: bool, debug: bool) -> int:
    """Print the error, with ``--json`` also as JSON, and return the exit code.

    Of several processes rank 0 prints it; an error of a single process is printed by that process.
    """
    code, message, exit_code = _described(error)
    defect = code == "defect"
    all_ranks = defect or (isinstance(error, ProcessesError) and not error.agreed)
    if debug or defect:
        output.say(traceback.format_exc(), all_ranks)
    output.say(message if defect else f"error: {message}", all_ranks)
    if as_json:
        with suppress(OSError):  # where stdout itself is what failed
            output.write_json({"error": {"code": code, "message": message}})
    return exit_code


def _described(error: BaseException) -> tuple[str, str, int]:
    """The code, the message and the exit code of an error."""
    if isinstance(error, HastenError):
        return error.code, str(error), error.exit_code
    if isinstance(error, _GrammarError):
        return UsageError.code, _grammar(error), error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Interrupted.code, "interrupted", 130
    if is_out_of_memory(error):
        return "memory", f"out of memory: {str(error).strip()}", 1
    if isinstance(error, OSError) and (error.filename or error.errno in DISK_FULL):
        where = error.filename or "a file or standard output cannot be written"
        return "system", f"{where}: {error.strerror or error}", 1
    return "defect", f"this is a defect in hasten: {type(error).__name__}: {error}", 1


def _grammar(error: Any) -> str:
    """A message about flags and arguments, with the nearest name of an unknown flag."""
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoSuchOption" and option and context is not None:
        command = context.command
        hint = command.hint(option, context) if isinstance(command, options.Command) else ""
        return f"unknown option {option} of {context.command_path}{hint}"
    message = cast(str, error.format_message())
    takes_data = context is not None and any(p.name == "data" for p in context.command.params)
    if takes_data and "extra argument" in message:
        message += (
            "; to read several files as one table, put the pattern in quotes: 'DIR/*.parquet'"
        )
    return message
