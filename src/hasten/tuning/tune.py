"""``hasten.tune``: search for settings within a budget, select on validation, test once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.atomic_write import write_atomically
from hasten.build import with_builtin_sample
from hasten.config import RunConfig
from hasten.config_loading.build import EVERYDAY, build_config, load_config
from hasten.config_loading.units import parse_seconds
from hasten.console import write_stderr
from hasten.errors import Interrupted, RunFolderError, UsageError
from hasten.loaded_run import evaluate
from hasten.registry import load_model
from hasten.runs.exact_json import to_plain_json
from hasten.runs.planned_folder import new_folder, open_planned
from hasten.runs.resuming import all_options
from hasten.runs.run_folder import RunFolder
from hasten.tuning.plot import plot_importance
from hasten.tuning.recipe import write_recipe
from hasten.tuning.result import Tuning
from hasten.tuning.search import Limits, Search
from hasten.tuning.space import search_space

RESULT, RECIPE, PLOT = "result.json", "recipe.yaml", "importance.png"


def tune(
    model: str = "sasrec",
    data: str | Path | None = None,
    *,
    budget: float | str | None = None,
    trials: int | None = None,
    search: Mapping[str, Any] | None = None,
    baseline: str = "equal",
    test: bool = True,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **flags: Any,
) -> Tuning:
    """Search for settings of a model by the validation metric; return a :class:`Tuning`.

    budget: seconds, or "90s", "30m", "2h". trials: settings that are tried; at least one of the two
    is needed. search: key -> "1e-4..1e-2", "32,64" or a list, instead of the options that the model
    declares. baseline: "equal": half of the budget is for the defaults, with several seeds; "once":
    they are trained once. test: evaluate the selected run and the defaults on the test part in the
    end. out: folder; a call with the same one continues. config, settings, flags: as for
    :func:`train`; options that are given are not searched. Raises hasten.HastenError.
    """
    if data is not None and not isinstance(data, str | Path):
        raise UsageError(
            "tune with a table in memory: runs read their data from files when they continue; "
            "save the table (to Parquet, say) and give its path"
        )
    if baseline not in ("equal", "once"):
        raise UsageError(f"baseline {baseline}: must be equal or once")
    if budget is None and trials is None:
        raise UsageError("give a budget (--budget 2h), a number of trials (--trials 30), or both")
    if trials is not None and trials < 1:
        raise UsageError(f"trials {trials}: must be at least 1")
    configured = {
        EVERYDAY.get(key, key): value for key, value in {**(settings or {}), **flags}.items()
    }
    file = None if config is None else Path(config)
    built = build_config(model, None if data is None else str(data), file, (), configured)
    built = _prepared(built)
    space = search_space(load_model(built.model.name), configured, search or {})
    seconds = None if budget is None else parse_seconds("budget", str(budget))
    limits = Limits(seconds, trials, baseline == "equal")
    data_name = built.data.path or built.data.train or "data"
    folder = Path(out) if out is not None else new_folder("tunings", built.model.name, data_name)
    fixed = {k: v for k, v in all_options(built).items() if k != "training.max_time"}
    plan = {
        "settings": fixed,
        "search": {key: str(values) for key, values in space.items()},
        "baseline": baseline,
    }
    say: Callable[[str], object] = (lambda _: None) if quiet else write_stderr
    with open_planned(folder, plan, "tuning"):
        finished = _finished(folder, limits)
        if finished is not None:
            return finished
        search_run = Search(folder, built, space, limits, say)
        try:
            search_run.run()
        except Interrupted as error:
            raise Interrupted(
                f"interrupted; everything is saved: repeat the command with  --out {folder}",
                error.signal_number,
            ) from error
        return _conclude(search_run, test)


def _prepared(config: RunConfig) -> RunConfig:
    """One split for all runs, and the test part sealed."""
    if config.devices > 1:
        raise UsageError("a tuning trains in one process: leave --devices out")
    if config.training.max_time is not None:
        raise UsageError("--max-time limits one run; a tuning is limited by --budget")
    if config.data.refit:
        raise UsageError("data.refit trains on the validation part, which a tuning selects by")
    config = with_builtin_sample(config)
    split_seed = config.data.seed_for_split(config.seed)
    data = config.data.model_copy(update={"split_seed": split_seed})
    evaluation = config.evaluation.model_copy(update={"test": False})
    return config.model_copy(update={"data": data, "evaluation": evaluation, "out": None})


def _finished(folder: Path, limits: Limits) -> Tuning | None:
    """The result of a tuning whose test part was evaluated; it cannot go on."""
    if not (folder / RESULT).is_file():
        return None
    stored = RunFolder(folder, None).read_json(RESULT)
    before = stored.pop("limits")
    if stored["test"] is None:
        return None
    if before != [limits.seconds, limits.trials]:
        raise RunFolderError(
            f"{folder}: finished: its test part was evaluated, so nothing more can be selected; "
            "search longer in another folder (--no-test keeps the test part sealed meanwhile)"
        )
    return Tuning.from_json(stored)


def _conclude(search: Search, test: bool) -> Tuning:
    """Select, write the result, the recipe and the plot, and open the test part once."""
    folder, study, sign = search.folder, search.study, search.study.sign
    known = {seed: each for seed, each in search.defaults.items() if each["done"]}
    seed = max(known, key=lambda each: sign * known[each]["best"])
    defaults = {
        "run": str(search.defaults_path(seed)),
        "valid": known[seed]["best"],
        "epochs": known[seed]["epochs"],
        "seeds": {str(each): values["best"] for each, values in known.items()},
    }
    rows = [
        {
            "trial": trial.number,
            "epochs": trial.user_attrs.get("epochs", 0),
            "valid": trial.user_attrs.get("best"),
            "seconds": trial.user_attrs.get("seconds", 0.0),
            "error": trial.user_attrs.get("error"),
            "settings": trial.params,
        }
        for trial in study.frozen()
    ]
    selected = {**defaults, "settings": {}}
    tried = [row for row in rows if row["valid"] is not None]
    best = max(tried, key=lambda row: sign * row["valid"], default=None)
    if best is not None and sign * best["valid"] > sign * selected["valid"]:
        path = str(search.trial_path(best["trial"]))
        selected = {"run": path, **{key: best[key] for key in ("valid", "epochs", "settings")}}
    summary = RunFolder(Path(selected["run"]), None).read_json("metrics.json")
    tuning = Tuning(
        path=folder,
        model=search.model.name,
        data=summary["data"],
        metric=search.metric,
        protocol=summary["protocol"],
        selected=selected,
        defaults=defaults,
        trials=rows,
        importance=study.importance(search.rungs[0]),
        seconds={what: search.spent(what) for what in ("search", "defaults")},
        recipe=folder / RECIPE,
        notes=_notes(selected, defaults, search),
    )
    plot_importance(tuning.importance, folder / PLOT)
    write_recipe(tuning.recipe, load_config(Path(selected["run"]) / "config.yaml"), _about(tuning))
    _write(tuning, search.limits)
    if test:
        parts = {"selected": selected["run"], "defaults": defaults["run"]}
        device = search.base.device
        tested = {run: _test(run, device) for run in dict.fromkeys(parts.values())}
        tuning = Tuning(**{**vars(tuning), "test": {what: tested[r] for what, r in parts.items()}})
        _write(tuning, search.limits)
    return tuning


def _test(run: str, device: str) -> dict[str, float]:
    values: dict[str, float] = evaluate(Path(run), part="test", device=device)["test"]
    return values


def _notes(selected: Mapping[str, Any], defaults: Mapping[str, Any], search: Search) -> list[str]:
    notes, values = [], list(defaults["seeds"].values())
    gain = abs(selected["valid"] - defaults["valid"])
    if not selected["settings"]:
        notes.append("no trial was better than the defaults")
    elif len(values) > 1:
        spread = statistics.stdev(values)
        notes.append(
            f"the gain over the best of {len(values)} seeds of the defaults is {gain:.4f}; their "
            f"standard deviation is {spread:.4f}"
        )
    if selected["epochs"] < search.rungs[-1] and search.base.training.patience is None:
        notes.append(
            f"the budget ended the selected run at epoch {selected['epochs']} of "
            f"{search.rungs[-1]}; the recipe trains it to the end"
        )
    return notes


def _about(tuning: Tuning) -> list[str]:
    """The first lines of the recipe."""
    changed = ", ".join(f"{key}={value}" for key, value in tuning.selected["settings"].items())
    return [
        f"{tuning.model} on {tuning.data}, selected by hasten tune among {len(tuning.trials)} "
        "trials",
        f"valid {tuning.metric} {tuning.selected['valid']:.4f}, "
        f"defaults {tuning.defaults['valid']:.4f}: {changed or 'the defaults'}",
        tuning.protocol,
    ]


def _write(tuning: Tuning, limits: Limits) -> None:
    values = {**tuning.to_json(), "limits": [limits.seconds, limits.trials]}
    write_atomically(tuning.path / RESULT, (to_plain_json(values, indent=1) + "\n").encode())
