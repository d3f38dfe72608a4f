"""Verdicts on alternatives, by the margin; if undecided, what would decide it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hasten.comparison.statistics import ALPHA, Difference, holm, student_quantile
from hasten.errors import UsageError

#: the probability with which the suggested numbers of seeds and users decide
POWER = 0.8
_MAX_SEEDS = 1000

Part = Literal["valid", "test"]
Outcome = Literal["equivalent", "better", "worse", "not worse", "undecided"]


@dataclass(frozen=True)
class Margin:
    """The largest difference that does not matter; relative: as a share of the baseline."""

    value: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Margin:
        """``1%`` of the baseline, or ``0.001`` of the metric. Raises UsageError."""
        match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(%?)", text.strip())
        value = float(match[1]) if match else 0.0
        if match is None or value <= 0:
            raise UsageError(
                f"--margin {text}: expected a share of the baseline such as 1%, or a difference "
                "of the metric such as 0.001"
            )
        return cls(value / 100, True) if match[2] else cls(value, False)

    def text(self, value: float | None = None, signed: bool = False) -> str:
        """A difference in the unit of the margin; None: the margin itself."""
        shown = self.value if value is None else value
        if self.relative:
            return (f"{shown * 100:+.2f}" if signed else f"{shown * 100:g}") + " %"
        return f"{shown:+.4f}" if signed else f"{shown:g}"


@dataclass(frozen=True)
class Criteria:
    """What a verdict is about. metric: None: the first of the baseline's."""

    margin: Margin
    metric: str | None = None
    part: Part = "valid"


@dataclass(frozen=True)
class Verdict:
    """The outcome for one alternative, with p-values that are corrected for their number.

    enough_seeds: how many seeds, of as many users as now, would probably decide; None if more than
    a thousand, if it is decided, or if there is one seed. enough_users: the same for users, with
    the seeds as now.
    """

    outcome: Outcome
    p_difference: float
    p_not_worse: float
    p_equivalent: float
    enough_seeds: int | None = None
    enough_users: int | None = None


def judge(differences: Sequence[Difference], margin: float) -> list[Verdict]:
    """The verdicts on the alternatives of one baseline, corrected with Holm's method.

    The order of questions: equivalent within the margin, better, worse, and at least not worse by
    more than the margin.
    """
    p_none = holm([d.p_none() for d in differences])
    p_worse = holm([d.p_at_most(-margin) for d in differences])
    p_within = holm([d.p_equivalent(margin) for d in differences])
    verdicts = []
    for index, each in enumerate(differences):
        p = (p_none[index], p_worse[index], p_within[index])
        outcome = _outcome(each.estimate, *p)
        enough: tuple[int | None, int | None] = (None, None)
        if outcome in ("undecided", "not worse") and each.seeds > 1:
            alpha = ALPHA / len(differences)
            enough = _enough(each, margin, alpha)
        verdicts.append(Verdict(outcome, *p, *enough))
    return verdicts


def _outcome(estimate: float, p_none: float, p_not_worse: float, p_equivalent: float) -> Outcome:
    if p_equivalent <= ALPHA:
        return "equivalent"
    if p_none <= ALPHA:
        return "better" if estimate > 0 else "worse"
    return "not worse" if p_not_worse <= ALPHA else "undecided"


def _enough(difference: Difference, margin: float, alpha: float) -> tuple[int | None, int | None]:
    """The fewest seeds, and the number of users to two digits, that probably decide.

    None: a thousand seeds, or a thousand times the users, do not.
    """
    counts = range(difference.seeds + 1, _MAX_SEEDS + 1)
    seeds = next(
        (n for n in counts if _decides(difference, margin, alpha, n, difference.users)), None
    )
    steps = (math.ceil(difference.users * 10 ** (step / 20)) for step in range(1, 61))
    users = next(
        (n for n in steps if _decides(difference, margin, alpha, difference.seeds, n)), None
    )
    if users is not None:
        unit: int = 10 ** max(0, len(str(users)) - 2)
        users = math.ceil(users / unit) * unit
    return seeds, users


def _decides(difference: Difference, margin: float, alpha: float, seeds: int, users: int) -> bool:
    """Whether the difference, were it as estimated, would be told with so many seeds and users."""
    by_seed = difference.seed_variance * difference.seeds / seeds
    by_user = difference.user_variance * difference.users / users
    error = math.sqrt(by_seed + by_user)
    freedom = _freedom(by_seed, by_user, seeds)
    power = student_quantile(POWER, freedom)
    size = abs(difference.estimate)
    equivalent = (student_quantile(1 - alpha, freedom) + power) * error <= margin - size
    different = (student_quantile(1 - alpha / 2, freedom) + power) * error <= size
    return equivalent or different


def _freedom(by_seed: float, by_user: float, seeds: int) -> int:
    """Degrees of freedom of the sum of a variance of seeds and one of users (Satterthwaite)."""
    if by_seed == 0:
        return 10**6
    return max(1, int((by_seed + by_user) ** 2 / by_seed**2 * (seeds - 1)))
