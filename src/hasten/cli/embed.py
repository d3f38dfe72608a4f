"""``hasten embed`` and ``hasten check-embeddings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli import output
from hasten.cli.options import (
    CheckpointOption,
    DebugOption,
    DeviceOption,
    JsonOption,
    RunArgument,
    flag,
    prepare_process,
)
from hasten.errors import HastenError, UsageError

_ENDINGS = {"csv": ".csv", "parquet": ".parquet", "npy": ".npy", "projector": ""}


def embed(
    run: RunArgument,
    out: Annotated[
        Path | None, flag("FILE", "File to write; default: embeddings.* in the run folder.")
    ] = None,
    format: Annotated[
        str | None, flag("NAME", "csv, parquet, npy or projector (a folder).")
    ] = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Write the embeddings of all nodes of RUN.

    CSV and Parquet have the columns node_id, node_name, node_type, embedding.
    """
    ending = "" if out is None else out.suffix.removeprefix(".")
    form = format or ending or "csv"
    if form not in _ENDINGS:
        raise UsageError(f"format {form!r}: there are {', '.join(_ENDINGS)}")
    target = run / f"embeddings{_ENDINGS[form]}" if out is None else out
    if form != "projector" and target.is_dir():
        raise UsageError(f"{target} is a folder; name a file")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: there is no folder {target.parent}")
    prepare_process()
    from hasten.inference import embed as engine  # noqa: PLC0415 - brings torch
    from hasten.loaded_run import load_run  # noqa: PLC0415

    found = engine.embed(load_run(run, checkpoint=checkpoint, device=device or "auto"))
    files = engine.write_embeddings(found, target, form)
    width = found.vectors.shape[1]
    output.say(f"{len(found):,} embeddings of width {width} in {', '.join(map(str, files))}")
    output.say(f"next: hasten check-embeddings {run}")
    if json:
        output.write_json(
            {
                "run": run,
                "checkpoint": checkpoint,
                "format": form,
                "files": [str(file) for file in files],
                "nodes": len(found),
                "width": width,
            }
        )


def check(
    what: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="A file, or a run folder.")],
    plots: Annotated[
        Path | None, flag("DIR", "Folder for the plots pca.png and variance.png.")
    ] = None,
    max_cosine: Annotated[float, flag("X", "Maximum mean cosine similarity.")] = 0.5,
    min_components: Annotated[
        int, flag("N", "Minimum components for 90 % of the variance.", min=1)
    ] = 15,
    sample: Annotated[int, flag("N", "Nodes to sample.", min=2)] = 2048,
    seed: Annotated[int, flag("N", "Seed of the sample.", min=0)] = 0,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Test embeddings for collapse, in comparison with random vectors.

    For a run also test link prediction on held-out links. The exit code is 1 if a
    criterion is not met.
    """
    if not what.exists():
        raise UsageError(f"{what}: no such file or run folder")
    prepare_process()
    from hasten.inference.check_embeddings import check_embeddings  # noqa: PLC0415 - brings torch

    found = check_embeddings(
        what,
        plots=plots,
        max_cosine=max_cosine,
        min_components=min_components,
        sample=sample,
        seed=seed,
        checkpoint=checkpoint,
        device=device or "auto",
    )
    _show(found)
    if json:
        output.write_json(found)
    if found["problems"]:
        error = HastenError(f"{what}: " + "; ".join(found["problems"]))
        if json:
            raise typer.Exit(error.exit_code)
        raise error


def _show(found: dict[str, Any]) -> None:
    """Print the diagnostics beside those of random vectors."""
    if found["health"] is not None:
        output.say(f"{'':<16} {'these':>10} {'random':>10}")
        for name, value in found["health"].items():
            if name in ("within_type", "nodes", "width"):
                continue
            other = found["random"][name]
            output.say(f"{name:<16} {_number(value):>10} {_number(other):>10}")
        for name, value in found["health"]["within_type"].items():
            output.say(f"  within {name}: {value:.3f}")
    else:
        output.say("embeddings: this model has none; only its links are evaluated")
    if found["links"] is not None:
        links = found["links"]
        output.say(f"held-out links of {found['part']}: AUROC {links['auroc']:.4f}, "
                   f"AP {links['ap']:.4f} (means over relations)")  # fmt: skip
        for name, each in links["relations"].items():
            output.say(
                f"  {name}: AUROC {each['auroc']:.4f}, AP {each['ap']:.4f}, "
                f"{each['links']:.0f} links"
            )
    else:
        output.say("links: not evaluated (give the run folder instead of a file)")
    output.say(found["note"])


def _number(value: float) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
