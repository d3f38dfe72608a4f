"""``hasten tune``: search for hyperparameters within a time budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli import options, output
from hasten.cli.options import EVALUATION, TRAINING, argument, option, switch
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.tuning.result import Tuning

_SHOWN = 10


def tune(
    model: str = argument("MODEL", "The model.", default=..., complete=options.model_names),
    data: str | None = argument(
        "DATA", "File, folder or registered name; default: a built-in sample."
    ),
    budget: str | None = option("TIME", "Search and train the defaults this long: 30m, 2h."),
    trials: int | None = option("N", "Try this many settings.", min=1),
    search: list[str] | None = option(
        "KEY=VALUES",
        "Search this option, in 1e-4..1e-2 or 32,64, instead of the model's; repeatable.",
        None,
        "--search",
    ),
    baseline: str = option(
        "HOW",
        "equal: the defaults get half of the budget, with several seeds; once: one run.",
        default="equal",
    ),
    test: bool = switch(
        "--test/--no-test",
        "In the end evaluate the selected run and the defaults on the test part, once.",
        EVALUATION,
        default=True,
    ),
    config: Path | None = option("FILE", "YAML file with the settings of all runs.", TRAINING),
    recipe: str | None = option("NAME", "Recipe to start from instead of the defaults.", TRAINING),
    sets: list[str] | None = options.SETS,
    epochs: str | None = option("N", "Epochs of a full run.", TRAINING),
    seed: str | None = option("N", "Seed of the search and of its runs."),
    metrics: str | None = options.METRICS,
    topk: str | None = options.TOPK,
    like: str | None = options.LIKE,
    format: str | None = options.FORMAT,
    device: str | None = options.DEVICE,
    threads: str | None = options.THREADS,
    out: Path | None = option("DIR", "Folder of the tuning; repeat the command to continue."),
    json: bool = options.JSON,
    quiet: bool = options.QUIET,
    debug: bool = options.DEBUG,
) -> None:
    """Search for settings of MODEL by the validation metric, and write them as a recipe.

    hasten tune sasrec events.csv --budget 2h --out tunings/mine

    hasten tune bprmf --trials 9 --search training.lr=1e-3..1e-1 --search model.width=16,32
    """
    flags = options.configuration_flags(**locals())
    for name in ("config", "out"):
        flags.pop(name, None)
    options.prepare_process()
    import hasten  # noqa: PLC0415 - brings torch

    tuning = hasten.tune(
        model,
        data,
        budget=budget,
        trials=trials,
        search=dict(_pair("--search", text) for text in search or ()),
        baseline=baseline,
        test=test,
        config=config,
        settings=dict(_pair("--set", text) for text in sets or ()),
        out=out,
        quiet=quiet,
        **flags,
    )
    if json:
        output.write_json(tuning.to_json())
    else:
        show(tuning)


def _pair(flag: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{flag} {text}: expected key=value")
    return key.strip(), value


def show(tuning: Tuning) -> None:
    """Print the best trials and the importance of the options; what was selected, on stderr."""
    name = f"valid {tuning.metric}"
    base = tuning.defaults
    rows = [{"run": "defaults", "epochs": base["epochs"], name: base["valid"], "settings": ""}]
    rows += [
        {
            "run": f"trial {trial['trial']}",
            "epochs": trial["epochs"],
            name: trial["valid"],
            "settings": ", ".join(
                f"{key.partition('.')[2]}={value:.3g}"
                if isinstance(value, float)
                else f"{key.partition('.')[2]}={value}"
                for key, value in trial["settings"].items()
            ),
        }
        for trial in tuning.best(_SHOWN)
    ]
    output.show_rows(rows, list(rows[0]), longest=120)
    if tuning.importance:
        shares = [{"option": key, "importance": value} for key, value in tuning.importance.items()]
        output.say()
        output.show_rows(shares, list(shares[0]))
    output.say()
    output.say(f"selected    {tuning.selected['run']}")
    for setting, values in (tuning.test or {}).items():
        shown = "  ".join(f"{metric} {value:.4f}" for metric, value in values.items())
        output.say(f"test        {setting}: {shown}")
    output.say(f"protocol    {tuning.protocol}")
    for note in tuning.notes:
        output.say(f"note        {note}")
    output.say(f"recipe      {tuning.recipe}")
    output.say(f"next        hasten train {tuning.model} DATA --recipe {tuning.recipe}")
