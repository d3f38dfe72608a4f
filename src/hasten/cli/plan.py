"""``hasten plan``: predict the memory, time and disk of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli import options, output
from hasten.cli.options import option
from hasten.cli.train import train

if TYPE_CHECKING:
    from hasten.planning.budget import BudgetPlan
    from hasten.planning.plan import Plan

#: options of train that have no effect on what a run needs
_WITHOUT = ("context", "out", "resume", "refit", "quiet", "memory_budget")


@options.with_options_of(
    train,
    _WITHOUT,
    budget=option("SIZE", "Also find the fastest settings that fit this memory, such as 10GB."),
    runs=option(
        "DIR",
        "Correct the plan by the finished runs with these settings in DIR (default: runs); off: "
        "do not.",
    ),
)
def plan(**given: Any) -> None:
    """Predict the memory, time and disk of a run before it starts.

    Takes the options of hasten train. Starts the run in a process of its own, takes a few steps and
    a part of an evaluation, and measures them. Nothing is kept. Finished runs with the same
    settings correct the predicted peak memory and seconds of an epoch, and the output says so.

    hasten plan sasrec events.csv --batch-size 512
    """
    flags = options.configuration_flags(**given)
    options.prepare_process()
    from hasten.build import with_builtin_sample  # noqa: PLC0415 - brings torch
    from hasten.config_loading.build import build_config  # noqa: PLC0415
    from hasten.config_loading.units import parse_size  # noqa: PLC0415
    from hasten.planning.budget import plan_budget  # noqa: PLC0415
    from hasten.planning.plan import plan_run  # noqa: PLC0415

    budget = None if given["budget"] is None else parse_size("--budget", given["budget"])
    config = build_config(
        given["model"], given["data"], given["config"], given["sets"] or [], flags
    )
    config = with_builtin_sample(config)
    if budget is None:
        runs = given["runs"] or "runs"
        planned = plan_run(config, None if runs == "off" else Path(runs))
        if given["json"]:
            output.write_json(planned.to_json())
        else:
            _show(planned)
        return
    search = plan_budget(config, budget, lambda one: output.say(f"tried {one.text}"))
    if given["json"]:
        output.write_json(search.to_json())
    else:
        _show_search(search)


def _show(plan: Plan) -> None:
    """Print a plan as tables."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415

    names = ", ".join(f"{name} {value}" for name, value in plan.settings.items())
    output.say(f"{plan.model} on {plan.data} ({plan.device}): {names}")
    seconds = dict(plan.seconds)
    total = seconds.pop("total")
    tables = {
        "memory while training": {k: _bytes(v) for k, v in plan.memory.items()},
        "peak memory by stage": {k: _bytes(v) for k, v in plan.stages.items()},
        "time": {
            **{name: _time(value) for name, value in seconds.items()},
            f"{plan.epochs} epochs": _time(total),
        },
    }
    console = Console(highlight=False)
    for title, values in tables.items():
        table = Table(title, "", box=None, pad_edge=False, header_style="")
        table.columns[1].justify = "right"
        for name, value in values.items():
            table.add_row(name, value)
        console.print(table)
        console.print()
    console.print(
        f"predicted peak {_bytes(plan.peak_memory_bytes)}, "
        f"{_time(plan.seconds['epoch'])} for each epoch of {plan.steps['epoch']:,} steps "
        f"({plan.steps['measured']:,} measured), run folder {_bytes(plan.disk_bytes)}"
    )
    if (before := plan.corrected) is None:
        if plan.steps["epoch"]:
            console.print(
                "time to the best epoch: not predicted; only finished runs with these settings "
                "tell it (--runs)"
            )
    else:
        console.print(
            f"time to the best epoch (epoch {before['best_epoch']} in finished runs): "
            f"{_time(before['best_epoch_seconds'])}"
        )
        console.print(
            f"corrected by {len(before['runs'])} finished runs with these settings: "
            f"{', '.join(before['runs'][:3])}; the probe alone predicted "
            f"{_bytes(before['peak_memory_bytes'])}, {_time(before['epoch_seconds'])} (--runs off)",
            markup=False,
        )


def _show_search(search: BudgetPlan) -> None:
    """Print the settings that were tried, and the plan of those chosen."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415

    console, chosen = Console(highlight=False), search.chosen
    table = Table("settings", "peak", "s/epoch", "fits", "cost", box=None, pad_edge=False)
    for one in search.tried:
        seconds = "" if one.plan is None else f"{one.seconds:.2f}"
        peak = "" if one.plan is None else _bytes(one.plan.peak_memory_bytes)
        fits = "yes" if one.fits(search.budget) else "no"
        table.add_row(one.text, peak, seconds, fits, one.costs)
    console.print(table)
    console.print()
    if chosen is None or chosen.plan is None:
        console.print(f"nothing fits: {search.refusal}", markup=False)
    else:
        console.print(f"fastest that fits: {chosen.text}")
        _show(chosen.plan)


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
