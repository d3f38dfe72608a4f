"""The text of a comparison, for the terminal and the page."""

from __future__ import annotations

import math
from typing import Any

from hasten.comparison.result import Alternative, Comparison
from hasten.comparison.statistics import Difference, Ratio


def explain(alternative: Alternative, comparison: Comparison) -> str:
    """The verdict in a sentence, with what would decide it if it is open."""
    margin, verdict = comparison.margin.text(), alternative.verdict
    if verdict.outcome == "equivalent":
        return f"equivalent: within {margin} of the baseline"
    if verdict.outcome in ("better", "worse"):
        return f"{verdict.outcome} than the baseline"
    text = f"undecided at a margin of {margin}"
    if verdict.outcome == "not worse":
        text = f"not worse by more than {margin}; whether it is better is undecided"
    return f"{text}; {_enough(alternative, comparison)}"


def _enough(alternative: Alternative, comparison: Comparison) -> str:
    seeds, users = alternative.verdict.enough_seeds, alternative.verdict.enough_users
    difference = alternative.differences[comparison.metric]
    ways = []
    if seeds is not None:
        time = ""
        if comparison.seconds_per_seed is not None:
            time = f" ({duration(seeds * comparison.seconds_per_seed)} of training)"
        ways.append(f"about {seeds} seeds{time}")
    if users is not None:
        ways.append(f"about {users:,} {comparison.units}")
    if ways:
        return f"{' or '.join(ways)} would probably be enough"
    if difference.seeds == 1:
        return "compare at least 3 seeds"
    return (
        "neither a thousand seeds nor a thousand times the "
        f"{comparison.units} alone would be enough: compare more of both, or choose a larger margin"
    )


def table(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for the baseline and for each alternative, all with the same columns."""
    metric, base = comparison.metric, comparison.baseline
    first = {"setting": base.name, "seeds": len(base.seeds), metric: base.means[metric]}
    rows = []
    for each in comparison.alternatives:
        difference = each.differences[metric]
        low, high = (comparison.margin.text(bound, signed=True) for bound in difference.interval())
        rows.append(
            {
                "setting": each.setting.name,
                "seeds": difference.seeds,
                metric: each.setting.means[metric],
                "difference": comparison.margin.text(difference.estimate, signed=True),
                "95 % interval": f"{low} to {high}",
                "from seeds": _seed_share(difference),
                "speed": times(each.speed),
                "time": times(each.time),
                "memory": times(each.memory),
            }
        )
    return [{name: first.get(name, "") for name in rows[0]}, *rows]


def about(comparison: Comparison) -> list[str]:
    """What the result rests on, in lines."""
    count = comparison.alternatives[0].differences[comparison.metric].users
    several = len(comparison.alternatives)
    corrected = f", corrected for {several} alternatives (Holm)" if several > 1 else ""
    seeds = ", ".join(map(str, comparison.baseline.seeds))
    machines = (
        f"; trained on {' and '.join(comparison.trained_on)}" if any(comparison.trained_on) else ""
    )
    return [
        f"{comparison.part} part, {count:,} {comparison.units}; margin "
        f"{comparison.margin.text()}, set beforehand; level 5 %{corrected}",
        f"protocol: {comparison.protocol}",
        f"seeds {seeds}{machines}",
    ]


def folders(comparison: Comparison) -> list[str]:
    """Which finished run is which setting, if there is one of each."""
    settings = [comparison.baseline, *(each.setting for each in comparison.alternatives)]
    if comparison.seconds_per_seed is not None or any(len(each.runs) > 1 for each in settings):
        return []
    return ["runs: " + "; ".join(f"{each.name} is {each.runs[0]}" for each in settings)]


def times(ratio: Ratio | None) -> str:
    """``1.52x (1.45-1.60)``."""
    if ratio is None:
        return "-"
    shown = f"{ratio.estimate:.2f}x"
    return shown if math.isnan(ratio.low) else f"{shown} ({ratio.low:.2f}-{ratio.high:.2f})"


def duration(seconds: float) -> str:
    """``45 s``, ``2.5 min``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.{0 if seconds >= 600 else 1}f} min"
    return f"{seconds / 3600:.1f} h"


def _seed_share(difference: Difference) -> str:
    """The share of the estimate's variance that comes from seeds; the rest is from users."""
    total = difference.seed_variance + difference.user_variance
    if difference.seeds == 1 or total == 0:
        return "-"
    return f"{difference.seed_variance / total:.0%}"
