"""Every experiment: a name, and what ``hasten train`` is given. Add a group here, then run it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """One run: ``options`` go to ``hasten train`` as they are; ``data`` is a name of bench.data."""

    group: str
    model: str
    data: str
    options: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        return f"{self.group}-seed{self.seed}"

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the run: a changed experiment is another run."""
        text = json.dumps([self.model, self.data, self.options, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def seeds(
    group: str, model: str, data: str, options: str, count: int = 3
) -> tuple[Experiment, ...]:
    """The same experiment with seeds 0, 1, ..."""
    return tuple(
        Experiment(group, model, data, tuple(options.split()), seed) for seed in range(count)
    )


_COMMON = "--eval-every 1 --metrics ndcg,hr --topk 10"
_BEAUTY = f"{_COMMON} --set model.max_length=50 --set model.dropout=0.5"
_ML1M = f"{_COMMON} --set model.max_length=200 --set model.dropout=0.2"

EXPERIMENTS: tuple[Experiment, ...] = (
    *seeds(
        "sasrec-beauty-ce",
        "sasrec",
        "beauty",
        f"{_BEAUTY} --set model.loss=ce --lr 2e-3 --epochs 100 --patience 10",
    ),
    *seeds(
        "sasrec-ml-1m-ce",
        "sasrec",
        "ml-1m",
        f"{_ML1M} --set model.loss=ce --epochs 200 --patience 20",
    ),
    *seeds(
        "sasrec-ml-1m-bce",
        "sasrec",
        "ml-1m",
        f"{_ML1M} --set model.loss=bce --epochs 400 --patience 20",
    ),
)


def select(pattern: str | None, experiments: Iterable[Experiment]) -> list[Experiment]:
    """The experiments whose name contains the pattern; all where there is none."""
    return [e for e in experiments if pattern is None or pattern in e.name]
