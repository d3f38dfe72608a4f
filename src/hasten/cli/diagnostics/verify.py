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


def _show(found: Mapping[str, Any]) -> None:
    """Print what was compared, and the verdict."""
    for text in found["changed"]:
        output.say(f"changed      {text}")
    if found["changed"]:
        output.say("not the same: files of the run were changed; nothing was repeated")
        return
    for text in found["resumed"]:
        output.say(f"resumed      {text}")
    for each in found["environment"]:
        output.say(f"differs      {each['name']}: {each['recorded']}, here {each['here']}")
    for name in ("losses", "metrics"):
        output.say(f"{name:<12} {_agreement(found[name])}")
    for name, equal in found["weights"].items():
        output.say(f"weights      {name}: {'identical' if equal else 'different'} (SHA-256)")
    expected = "bit by bit"
    if found["expected"] == "digits":
        why = "the environment differs" if found["environment"] else "the options changed"
        expected = f"in {found['required_digits']} digits ({why})"
    verdict = "the same" if found["same"] else "not the same"
    count = "1 epoch" if found["epochs"] == 1 else f"{found['epochs']} epochs"
    output.say(f"{verdict}: {count} repeated, expected to agree {expected}")


def _agreement(found: Mapping[str, Any]) -> str:
    if found["equal"]:
        return f"{found['compared']} figures, identical"
    worst = found["worst"]
    return (
        f"{found['different']} of {found['compared']} figures differ, in {found['digits']} digits "
        f"they agree; most: {worst['name']} of epoch {worst['epoch']}, {worst['recorded']}, "
        f"here {worst['repeated']}"
    )
