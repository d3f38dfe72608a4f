"""``hasten.compare``: compare finished runs, or train settings and compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hasten.comparison.result import Comparison
from hasten.comparison.run import compare_by_training, compare_finished
from hasten.comparison.settings import Plan, configurations, plan_settings, speed_switches
from hasten.comparison.verdict import Criteria, Margin, Part
from hasten.config_loading.units import parse_seconds
from hasten.console import write_stderr
from hasten.distributed.device import resolve_device
from hasten.errors import UsageError
from hasten.runs.run_folder import RunFolder


def compare(
    *what: str | Path,
    alternatives: Sequence[Mapping[str, Any]] = (),
    baseline: Mapping[str, Any] | None = None,
    all_switches: bool = False,
    seeds: int | None = None,
    budget: float | str | None = None,
    margin: str = "1%",
    metric: str | None = None,
    part: str = "valid",
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    quiet: bool = False,
    **flags: Any,
) -> Comparison:
    """Compare settings with a baseline and return a :class:`hasten.comparison.result.Comparison`.

    ``hasten.compare("runs/a", "runs/b")`` compares finished runs, the baseline first.
    ``hasten.compare("sasrec", "events.csv", alternatives=[{"precision": "bf16"}], budget="1h")``
    trains the baseline and the alternatives with several seeds, in processes of their own, and
    continues where an earlier call with the same ``out`` ended.

    alternatives, baseline: changed options, by flag name or dotted key; all_switches: also one
    alternative for each speed switch. seeds: of each setting. budget: seconds, or "90s", "30m",
    "2h". margin: the largest difference that does not matter, "1%" of the baseline or "0.001".
    metric: for the verdict. part: "valid" or "test". config, settings, flags: as for :func:`train`.
    Raises hasten.HastenError.
    """
    _refuse_tables(what)
    criteria = Criteria(Margin.parse(margin), metric, _part(part))
    folder = None if out is None else Path(out)
    trains = bool(alternatives or all_switches)
    if what and not trains and (RunFolder.holds_run(Path(what[0])) or len(what) > 2):
        training_options = {
            "baseline": baseline,
            "seeds": seeds,
            "budget": budget,
            "config": config,
        }
        _refuse_without_training({**training_options, **(settings or {}), **flags})
        return compare_finished([Path(run) for run in what], criteria, folder, device or "auto")
    if seeds is not None and seeds < 1:
        raise UsageError(f"seeds {seeds}: must be at least 1")
    if not 1 <= len(what) <= 2:
        raise UsageError("to train settings, name a model and one data set")
    if not trains:
        raise UsageError(
            f"{what[0]}: no run folder; to train {what[0]}, name at least one alternative "
            "(--with precision=bf16) or --all-switches"
        )
    common_flags = {**(settings or {}), **flags, **({} if device is None else {"device": device})}
    data = str(what[1]) if len(what) > 1 else None
    file = None if config is None else Path(config)
    build = configurations(str(what[0]), data, file, common_flags)
    changes = [dict(each) for each in alternatives]
    if all_switches:
        first = build(baseline or {})
        changes += speed_switches(first, resolve_device(first.device).type)
    plan = Plan(plan_settings(build, baseline or {}, changes, criteria.part), criteria)
    return compare_by_training(
        plan,
        folder,
        seeds=seeds,
        budget=None if budget is None else parse_seconds("budget", str(budget)),
        say=(lambda _: None) if quiet else write_stderr,
    )


def _refuse_tables(what: Sequence[object]) -> None:
    if not all(isinstance(each, str | Path) for each in what):
        raise UsageError(
            "a table in memory cannot be used: each run is a process of its own, which reads a "
            "file; save the table (to Parquet, say) and give its path"
        )


def _part(name: str) -> Part:
    if name not in ("valid", "test"):
        raise UsageError(f"part {name}: must be valid or test")
    return cast(Part, name)


def _refuse_without_training(values: Mapping[str, Any]) -> None:
    without_effect = [name for name, value in values.items() if value is not None]
    if without_effect:
        raise UsageError(
            f"{without_effect[0]} has no effect on finished runs: name a model and data to train "
            "settings"
        )
