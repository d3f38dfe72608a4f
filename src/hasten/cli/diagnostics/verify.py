"""``hasten verify``: repeat a run and compare the outcome with its record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from hasten.cli import options, output
from hasten.cli.options import option


def verify(
    run: Path = options.RUN,
    epochs: str | None = option("N", "Repeat only the first N epochs; default: all."),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
    quiet: bool = options.QUIET,
) -> None:
    """Repeat RUN from its own folder and compare losses, metrics and weights.

    The exit code is 0 if they are the same: bit by bit with the same versions on the
    same kind of machine, else in the first two digits. A file of the run that was
    changed is named, and nothing is repeated.

    hasten verify runs/mine --epochs 2
    """
    count = options.whole_number("epochs", epochs)
    options.prepare_process()
    from hasten import verify as verification  # noqa: PLC0415 - brings torch

    comparison = verification.verify(run, epochs=count, quiet=quiet)
    if json:
        output.write_json(comparison)
    elif not quiet:
        _show(comparison)
    if not comparison["same"]:
        raise typer.Exit(1)


def _show(report: Mapping[str, Any]) -> None:
    """Print what was compared, and the verdict."""
    for text in report["changed"]:
        output.say(f"changed      {text}")
    if report["changed"]:
        output.say("not the same: files of the run were changed; nothing was repeated")
        return
    for text in report["resumed"]:
        output.say(f"resumed      {text}")
    for each in report["environment"]:
        output.say(f"differs      {each['name']}: {each['recorded']}, here {each['here']}")
    for name in ("losses", "metrics"):
        output.say(f"{name:<12} {_agreement(report[name])}")
    for name, equal in report["weights"].items():
        output.say(f"weights      {name}: {'identical' if equal else 'different'} (SHA-256)")
    expected = "bit by bit"
    if report["expected"] == "digits":
        why = "the environment differs" if report["environment"] else "the options changed"
        expected = f"in {report['required_digits']} digits ({why})"
    verdict = "the same" if report["same"] else "not the same"
    count = "1 epoch" if report["epochs"] == 1 else f"{report['epochs']} epochs"
    output.say(f"{verdict}: {count} repeated, expected to agree {expected}")


def _agreement(report: Mapping[str, Any]) -> str:
    if report["equal"]:
        return f"{report['compared']} figures, identical"
    worst = report["worst"]
    return (
        f"{report['different']} of {report['compared']} figures differ, in {report['digits']} "
        f"digits they agree; most: {worst['name']} of epoch {worst['epoch']}, {worst['recorded']}, "
        f"here {worst['repeated']}"
    )
