"""Compare finished runs: paired differences, a verdict on each alternative, speed and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hasten.comparison.finished import FinishedRun, Setting, refuse_incomparable
from hasten.comparison.result import Alternative, Comparison, SettingResult
from hasten.comparison.statistics import Difference, Paired, Ratio, difference, ratio
from hasten.comparison.values import UnitValues, unit_values
from hasten.comparison.verdict import Criteria, judge
from hasten.config import RunConfig, TripleOptions
from hasten.errors import UsageError
from hasten.evaluation.metrics import higher_is_better, parse_metric
from hasten.registry import data_options_of, load_model


def compare_settings(
    settings: Sequence[Setting],
    criteria: Criteria,
    folder: Path | None,
    device: str,
    seconds_per_seed: float | None = None,
) -> Comparison:
    """Compare settings with the first of them, the baseline.

    folder: keeps the metrics of users. seconds_per_seed: of training, for suggested numbers of
    seeds. Raises UsageError for runs that cannot be compared.
    """
    runs = [run for setting in settings for run in setting.runs]
    refuse_incomparable(runs)
    config = runs[0].config
    margin, part = criteria.margin, criteria.part
    metrics = compared_metrics(config, criteria.metric)
    cache = None if folder is None else folder / "values"
    values = {run.path: unit_values(run.path, part, metrics, cache, device) for run in runs}
    _refuse_other_protocols(values)
    units = len(values[runs[0].path].units)
    of_triples = issubclass(data_options_of(load_model(config.model.name)), TripleOptions)
    unit = "triples" if of_triples else "users"
    if units < 2:
        raise UsageError(f"the {part} part has fewer than two {unit}: nothing can be compared")
    notes: list[str] = []
    baseline, *others = settings
    pairs = [_pairs(baseline, setting, notes) for setting in others]
    differences = [
        {
            name: one
            for name in metrics
            if (one := _difference(each, values, name, margin.relative)) is not None
        }
        for each in pairs
    ]
    if any(metrics[0] not in each for each in differences):
        raise UsageError(
            f"{metrics[0]} of the baseline is not above 0, so no share of it can be a margin: give "
            "an absolute one (--margin 0.001), or another --metric"
        )
    verdicts = judge([each[metrics[0]] for each in differences], margin.value)
    if min(len(each) for each in pairs) == 1:
        notes.append(
            "one seed: the intervals say how these runs differ, not how their settings do, since "
            "they leave out the differences between seeds; compare at least 3 seeds"
        )
    if len({run.machine for run in runs}) > 1:
        notes.append("the runs were trained on different machines: times are not compared")
    measured = [_ratios(each) for each in pairs]
    return Comparison(
        model=config.model.name,
        data=runs[0].summary.data,
        part=part,
        metric=metrics[0],
        margin=margin,
        protocol=values[runs[0].path].protocol,
        units=unit,
        baseline=_setting_result(baseline, values, metrics),
        alternatives=tuple(
            Alternative(_setting_result(setting, values, metrics), of_metrics, verdict, *ratios)
            for setting, of_metrics, verdict, ratios in zip(
                others, differences, verdicts, measured, strict=True
            )
        ),
        notes=tuple(notes),
        trained_on=tuple(dict.fromkeys(run.trained_on for run in runs)),
        path=folder,
        seconds_per_seed=seconds_per_seed,
    )


def compared_metrics(config: RunConfig, metric: str | None) -> tuple[str, ...]:
    """The metric of the verdict and the others of a configuration. Raises ConfigurationError."""
    names = tuple(dict.fromkeys([*([metric] if metric else []), *config.evaluation.metrics]))
    for name in names:
        parse_metric(name)
    return names


def _refuse_other_protocols(values: dict[Path, UnitValues]) -> None:
    """Raise UsageError if runs were ranked by another protocol, or on other users."""
    (first, reference), *others = values.items()
    for run, each in others:
        if each.protocol != reference.protocol:
            raise UsageError(
                f"{run} and {first} cannot be compared: other protocols ({each.protocol}; "
                f"{reference.protocol})"
            )
        if not np.array_equal(each.units, reference.units):
            raise UsageError(f"{run} and {first} cannot be compared: other users are ranked")


def _pairs(
    baseline: Setting, setting: Setting, notes: list[str]
) -> list[tuple[FinishedRun, FinishedRun]]:
    """Runs of the same seed; where no seed is in both, in the order in which they were named."""
    by_seed = {run.config.seed: run for run in setting.runs}
    pairs = [(run, by_seed[run.config.seed]) for run in baseline.runs if run.config.seed in by_seed]
    pairs = pairs or list(zip(baseline.runs, setting.runs, strict=False))
    used = {run.path for pair in pairs for run in pair}
    left = [str(run.path) for run in (*baseline.runs, *setting.runs) if run.path not in used]
    if left:
        notes.append(f"{setting.name}: left out, without a partner: {', '.join(left)}")
    return pairs


def _difference(
    pairs: Sequence[tuple[FinishedRun, FinishedRun]],
    values: dict[Path, UnitValues],
    metric: str,
    relative: bool,
) -> Difference | None:
    """The difference; None if it is relative to a metric that is not above 0."""
    baseline, alternative = (
        np.stack([values[pair[side].path].sums[metric] for pair in pairs]) for side in (0, 1)
    )
    if relative and baseline.sum() <= 0:
        return None
    weight = values[pairs[0][0].path].weights[metric]
    return difference(Paired(baseline, alternative, weight, higher_is_better(metric)), relative)


def _ratios(
    pairs: Sequence[tuple[FinishedRun, FinishedRun]],
) -> tuple[Ratio | None, Ratio | None, Ratio | None]:
    """Speed, time and memory of the alternative, as ratios to the baseline."""
    first, second = zip(*((a.summary, b.summary) for a, b in pairs), strict=True)

    def of(a: Sequence[float], b: Sequence[float]) -> Ratio | None:
        known = all(x is not None and x > 0 for x in (*a, *b))  # None: not finite
        return ratio(a, b) if known else None

    memory = of([s.peak_memory_bytes for s in first], [s.peak_memory_bytes for s in second])
    if any(a.machine != b.machine for a, b in pairs):
        return None, None, memory
    speed = of([s.examples_per_second for s in first], [s.examples_per_second for s in second])
    time = of([s.seconds["train"] for s in first], [s.seconds["train"] for s in second])
    return speed, time, memory


def _setting_result(
    setting: Setting, values: dict[Path, UnitValues], metrics: Sequence[str]
) -> SettingResult:
    by_metric = {
        name: np.array([values[run.path].mean(name) for run in setting.runs]) for name in metrics
    }
    many = len(setting.runs) > 1
    return SettingResult(
        setting.name,
        tuple(run.path for run in setting.runs),
        tuple(setting.seeds),
        {name: float(each.mean()) for name, each in by_metric.items()},
        {name: float(each.std(ddof=1)) if many else math.nan for name, each in by_metric.items()},
    )
