"""``hasten import`` and ``import-config``: weights and configurations of other libraries."""

from __future__ import annotations

import sys
from pathlib import Path

from hasten.cli import options, output
from hasten.cli.options import SPEED, argument, option, switch
from hasten.errors import UsageError

_ROWS = "Which row is which"
_SPEC = "Rows of the {}: ids, order:FILE (one label a line) or FILE (label and row a line)."


def import_(
    weights: Path = argument("WEIGHTS", "A .pt or .pth file with a state_dict.", default=...),
    model: str = option("MODEL", "The model that the weights are of.", default=...),
    data: str = option("DATA", "The data that it was trained on.", default=...),
    out: Path | None = option("DIR", "Run folder; default: runs/<date>-<model>-<data>-<n>."),
    users: str | None = option("SPEC", _SPEC.format("users"), _ROWS),
    items: str | None = option("SPEC", _SPEC.format("items"), _ROWS),
    entities: str | None = option("SPEC", _SPEC.format("entities"), _ROWS),
    relations: str | None = option("SPEC", _SPEC.format("relations"), _ROWS),
    rename: list[str] | None = option(
        "OLD=NEW", "Beginning of a tensor's name, and what hasten expects; repeatable."
    ),
    approximate: bool = switch("--approximate", "Import although some scores differ; says which."),
    config: Path | None = option("FILE", "YAML file with further settings."),
    sets: list[str] | None = options.SETS,
    format: str | None = options.FORMAT,
    like: str | None = options.LIKE,
    lr: str | None = option("X", "Learning rate of the checkpoint, for hasten influence."),
    device: str | None = options.DEVICE,
    threads: str | None = option("N", "CPU threads.", SPEED),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
    quiet: bool = options.QUIET,
) -> None:
    """Make a run of the weights of another library or training script.

    Afterwards evaluate, recommend, predict, influence and resume work as after
    hasten train. The file is read with weights_only=True, which cannot run code.

    hasten import SASRec.pth --model sasrec --data ml-1m.txt --items ids
    """
    specs = {"users": users, "items": items, "entities": entities, "relations": relations}
    renames = {}
    for text in rename or ():
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"--rename {text}: expected OLD=NEW")
        renames[old] = new
    options.prepare_process()
    from hasten.importing.run import import_weights  # noqa: PLC0415 - brings torch

    summary = import_weights(
        weights,
        model,
        data,
        {kind: spec for kind, spec in specs.items() if spec is not None},
        config=config,
        sets=sets or (),
        flags=options.configuration_flags(
            out=out, format=format, like=like, lr=lr, device=device, threads=threads
        ),
        renames=renames,
        approximate=approximate,
        quiet=quiet,
    )
    if json:
        output.write_json(summary.to_json())
    elif not quiet:
        output.print_summary(summary)


def import_config(
    files: list[Path] = argument(
        "FILE...", "YAML or JSON files; later ones override.", default=...
    ),
    model: str | None = option("MODEL", "The model; default: the one that a file names."),
    out: Path | None = option("FILE", "Write the configuration; default: print it."),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Translate a configuration of RecBole, MMRec or a training script.

    Lists what was translated, and what has no counterpart and why.

    hasten import-config overall.yaml --model mmgcn --out mmgcn.yaml
    """
    from hasten.atomic_write import write_atomically  # noqa: PLC0415 - only when it is needed
    from hasten.importing.configuration import translate_config  # noqa: PLC0415 - brings pydantic
    from hasten.runs.config_text import config_text  # noqa: PLC0415 - as above

    translated = translate_config(files, model)
    text = config_text(translated.config, given=True)
    for line in translated.lines:
        settings = ", ".join(f"{key}={value}" for key, value in line.settings.items())
        reason = f"no counterpart: {line.reason}" if line.reason else settings or "as it is here"
        output.say(f"{line.place}: {line.key}: {reason}")
    if out is not None:
        write_atomically(out, text.encode())
        output.say(f"next: hasten train --config {out}")
    if json:
        output.write_json(
            {"model": translated.config.model.name, "out": out, "configuration": text,
             "keys": [vars(line) for line in translated.lines]}
        )  # fmt: skip
    elif out is None:
        sys.stdout.write(text)
