"""The result of a comparison, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.comparison.statistics import Difference, Ratio
from hasten.comparison.verdict import Margin, Verdict


@dataclass(frozen=True)
class SettingResult:
    """Runs of a setting, and the means and standard deviations of their metrics over seeds."""

    name: str
    runs: tuple[Path, ...]
    seeds: tuple[int, ...]
    means: dict[str, float]
    deviations: dict[str, float]


@dataclass(frozen=True, eq=False)
class Alternative:
    """An alternative beside the baseline.

    differences: by metric; verdict: on the metric of the comparison. speed (examples/s), time (of
    training) and memory (peak): ratios to the baseline, None if the machines differ.
    """

    setting: SettingResult
    differences: dict[str, Difference]
    verdict: Verdict
    speed: Ratio | None
    time: Ratio | None
    memory: Ratio | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of ``hasten.compare``. units: what was compared in pairs, users or triples."""

    model: str
    data: str
    part: str
    metric: str
    margin: Margin
    protocol: str
    units: str
    baseline: SettingResult
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]
    #: the machines and versions with which the runs were trained
    trained_on: tuple[str, ...] = ()
    #: the folder with the page and the cached values, if there is one
    path: Path | None = None
    #: mean wall seconds to train one seed of all settings, if they were trained for this
    seconds_per_seed: float | None = None

    def verdicts(self) -> dict[str, str]:
        """The outcome for each alternative, by name."""
        return {each.setting.name: each.verdict.outcome for each in self.alternatives}

    def to_json(self) -> dict[str, Any]:
        """What ``hasten compare --json`` prints."""
        return {
            "comparison": None if self.path is None else str(self.path),
            "model": self.model,
            "data": self.data,
            "part": self.part,
            "metric": self.metric,
            "margin": {"value": self.margin.value, "relative": self.margin.relative},
            "protocol": self.protocol,
            "units": self.units,
            "baseline": _setting_json(self.baseline),
            "alternatives": [_alternative_json(each) for each in self.alternatives],
            "notes": list(self.notes),
            "trained_on": list(self.trained_on),
            "seconds_per_seed": self.seconds_per_seed,
        }


def _setting_json(setting: SettingResult) -> dict[str, Any]:
    return {
        "name": setting.name,
        "runs": [str(run) for run in setting.runs],
        "seeds": list(setting.seeds),
        "mean": setting.means,
        "standard_deviation": setting.deviations,
    }


def _alternative_json(alternative: Alternative) -> dict[str, Any]:
    differences = {
        name: {
            "estimate": each.estimate,
            "interval": each.interval(),
            "seed_variance": each.seed_variance if each.seeds > 1 else None,
            "user_variance": each.user_variance,
            "seeds": each.seeds,
            "users": each.users,
        }
        for name, each in alternative.differences.items()
    }
    return {
        **_setting_json(alternative.setting),
        "verdict": vars(alternative.verdict),
        "differences": differences,
        **{
            name: None if (of := getattr(alternative, name)) is None else vars(of)
            for name in ("speed", "time", "memory")
        },
    }
