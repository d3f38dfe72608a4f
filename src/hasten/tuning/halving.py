"""Successive halving: which trial is trained next, and to which epoch.

The rule is that of asynchronous successive halving (Li et al. 2020) for one worker, but a trial
that was passed over waits with its checkpoint: it is promoted when it is among the best third
later. Trials are compared at the same epochs, the rungs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import NamedTuple

#: the share of the trials of a rung that goes on is 1 / ETA
ETA = 3


@dataclass(frozen=True)
class Trial:
    """A trial. target: the epoch that it is trained to; scores: by rung, larger is better."""

    number: int
    target: int
    scores: Mapping[int, float]


class Step(NamedTuple):
    """Train a trial (None: a new one) to this epoch."""

    number: int | None
    target: int


def rungs(epochs: int, every: int) -> list[int]:
    """A ninth, a third and all of the epochs, at evaluations: multiples of ``every``."""
    budgets = (ceil(epochs / ETA**2), ceil(epochs / ETA), epochs)
    return sorted({min(epochs, every * ceil(count / every)) for count in budgets})


def next_step(trials: Sequence[Trial], at: Sequence[int], start: bool) -> Step | None:
    """The next step; None if there is none. at: the rungs; start: whether a new trial may start.

    First what was interrupted, then promotions, the highest rung first, then a new trial. In the
    end the best trial goes to the last rung.
    """
    for trial in trials:
        if trial.target not in trial.scores:
            return Step(trial.number, trial.target)
    for rung, following in reversed(list(pairwise(at))):
        there = sorted(
            (trial for trial in trials if rung in trial.scores), key=lambda t: -t.scores[rung]
        )
        for trial in there[: len(there) // ETA]:
            if trial.target == rung:
                return Step(trial.number, following)
    return Step(None, at[0]) if start else last_step(trials, at[-1])


def last_step(trials: Sequence[Trial], end: int) -> Step | None:
    """Train the best trial of the highest rung to the end; None if one was."""
    done = [trial for trial in trials if trial.target in trial.scores]
    best = max(done, key=lambda t: (t.target, t.scores[t.target]), default=None)
    return None if best is None or best.target == end else Step(best.number, end)
