"""``hasten recipes``: list and show measured settings."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from hasten.cli import options, output
from hasten.cli.options import argument

if TYPE_CHECKING:
    from hasten.recipes.load import Recipe

app = typer.Typer(help="List and show recipes: measured settings by model and data set.")


@app.command("list", cls=options.Command)
def list_recipes(
    model: str | None = argument("MODEL", "Only its recipes.", complete=options.model_names),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """List the recipes, with what was measured with them on the test set.

    hasten recipes list sasrec
    """
    from hasten.recipes.load import recipes  # noqa: PLC0415 - brings yaml

    listed = recipes(model)
    if json:
        output.write_json({"recipes": [asdict(r) | {"command": r.command()} for r in listed]})
        return
    columns = ("model", "recipe", "test", "seeds", "training", "about")
    output.show_rows([_row(recipe) for recipe in listed], columns)


@app.command("show", cls=options.Command)
def show_recipe(
    model: str = argument("MODEL", "The model.", default=..., complete=options.model_names),
    recipe: str = argument("RECIPE", "DATASET/NAME, as listed.", default=...),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Show the settings of a recipe, its command and what was measured with it.

    hasten recipes show sasrec beauty/minute
    """
    from hasten.recipes.load import find_recipe  # noqa: PLC0415 - brings yaml

    selected = find_recipe(model, recipe)
    if json:
        output.write_json(asdict(selected) | {"command": selected.command()})
        return
    lines = [
        f"# {selected.model} {selected.key}: {selected.about}",
        f"# command   {selected.command()}",
        *(f"# test      {name} {_figure(value)}" for name, value in selected.expected.items()),
        f"# protocol  {selected.protocol}",
        f"# seeds     {', '.join(map(str, selected.seeds))}",
        f"# training  {_time(selected.training_seconds)} (mean), {selected.machine}",
        f"# records   experiments/results/{selected.records}-seed*.json",
        *(f"{key}: {_value(value)}" for key, value in selected.configuration.items()),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _row(recipe: Recipe) -> dict[str, Any]:
    metric, figure = next(iter(recipe.expected.items()))
    return {
        "model": recipe.model,
        "recipe": recipe.key,
        "test": f"{metric} {_figure(figure)}",
        "seeds": len(recipe.seeds),
        "training": _time(recipe.training_seconds),
        "about": recipe.about,
    }


def _figure(figure: list[float]) -> str:
    """Mean and standard deviation; the deviation is missing for a single seed."""
    return " ± ".join(f"{value:.4f}" for value in figure)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _value(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
