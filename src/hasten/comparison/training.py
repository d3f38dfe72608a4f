"""Train the settings of a comparison, interleaved over seeds, within a budget of time.

The comparison's folder holds its runs. Each run is a process of its own, so that its peak memory
is its own. All settings of a seed are trained one after the other, in an order that rotates, so
that a machine that slows down slows all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hasten.comparison.finished import FinishedRun, Setting, read_summary
from hasten.comparison.settings import Plan
from hasten.comparison.wording import duration
from hasten.config_loading.build import load_config
from hasten.errors import HastenError
from hasten.models.supports import Supports
from hasten.registry import load_model
from hasten.run_in_processes import train_in_processes
from hasten.runs.run_folder import RunFolder

#: seeds without a budget, and at most with one
SEEDS, MAX_SEEDS = 5, 100
#: seconds that a run has at least, when the budget is almost used
_MIN_RUN_SECONDS = 1.0


def train_settings(
    plan: Plan,
    folder: Path,
    seeds: int | None,
    budget: float | None,
    finished: Callable[[Path], object],
    say: Callable[[str], object],
) -> tuple[list[Setting], float]:
    """Train the settings; those with their runs, and the mean seconds of a seed.

    seeds: at most so many; None: five, or as many as the budget allows. budget: seconds over all
    sessions of the comparison. A seed that would probably not fit is not begun. finished: called
    with each new run. Raises HastenError if the budget does not suffice for one seed.
    """
    runs = _Runs(plan, folder, budget, finished, say)
    first = next(iter(plan.settings.values())).seed
    most = seeds or (SEEDS if budget is None else MAX_SEEDS)
    complete: list[int] = []
    for index in range(most):
        if not runs.train_seed(first + index, index, complete):
            break
        complete.append(first + index)
    settings = [
        Setting(name, [FinishedRun.read(runs.path(name, seed)) for seed in complete])
        for name in plan.settings
    ]
    return settings, runs.seconds(complete) / len(complete)


@dataclass
class _Runs:
    """The runs of a comparison in its folder."""

    plan: Plan
    folder: Path
    budget: float | None
    finished: Callable[[Path], object]
    say: Callable[[str], object]

    def __post_init__(self) -> None:
        self.names = list(self.plan.settings)
        self.begin = time.monotonic()
        ended = (self.folder / "runs").glob("*/metrics.json")
        self.earlier = sum(_seconds(file.parent) for file in ended)

    def path(self, name: str, seed: int) -> Path:
        """The run folder of a setting and seed."""
        words = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:40]
        return self.folder / "runs" / f"{self.names.index(name)}-{words}-seed{seed}"

    def seconds(self, seeds: Sequence[int]) -> float:
        """What the runs of these seeds took."""
        return sum(_seconds(self.path(name, seed)) for seed in seeds for name in self.names)

    def train_seed(self, seed: int, index: int, complete: Sequence[int]) -> bool:
        """Train what is missing of a seed; False if it does not fit into the budget."""
        turn = index % len(self.names)
        order = [*self.names[turn:], *self.names[:turn]]
        missing = [name for name in order if not self._is_finished(name, seed)]
        for number, name in enumerate(missing):
            if self.budget is not None:
                expected = self._expected(seed, missing[number:], complete)
                whole = self._spent() + expected
                if whole > self.budget:
                    if not complete:
                        self._refuse_budget(
                            f" of {len(self.names)} settings, which takes about {duration(whole)}; "
                            f"three seeds take about {duration(3 * whole)}"
                        )
                    return False
            self.say(f"seed {seed}: {name}")
            if not self._train(name, seed):
                if not complete:
                    reached = FinishedRun.read(self.path(name, seed)).summary.epochs
                    self._refuse_budget(f": it ended {name}, seed {seed}, after {reached} epochs")
                return False
        return True

    def _is_finished(self, name: str, seed: int) -> bool:
        """Whether a run was trained to its end, and not cut by the budget."""
        run = self.path(name, seed)
        if not (run / "metrics.json").is_file():
            return False
        cut = FinishedRun.read(run).summary.stopped_by == "max_time"
        limit = load_config(run / "config.yaml").training.max_time
        return not cut or limit == self.plan.settings[name].training.max_time

    def _spent(self) -> float:
        return self.earlier + time.monotonic() - self.begin

    def _expected(self, seed: int, missing: Sequence[str], complete: Sequence[int]) -> float:
        """What the missing runs of a seed will probably take; 0 before there is any run."""
        if complete:
            of = [sum(_seconds(self.path(n, s)) for s in complete) / len(complete) for n in missing]
            return sum(of)
        done = [_seconds(self.path(n, seed)) for n in self.names if n not in missing]
        return len(missing) * sum(done) / len(done) if done else 0.0

    def _refuse_budget(self, why: str) -> NoReturn:
        assert self.budget is not None
        raise HastenError(
            f"the budget of {duration(self.budget)} is too small for one seed{why}: repeat the "
            "command with a larger --budget to continue"
        )

    def _train(self, name: str, seed: int) -> bool:
        """Train or continue one run; False if the budget ended it."""
        path = self.path(name, seed)
        config = self.plan.settings[name].model_copy(update={"out": path, "seed": seed})
        own_limit, limit = config.training.max_time, None
        if self.budget is not None and Supports.of(load_model(config.model.name)).gradient_steps:
            limit = max(_MIN_RUN_SECONDS, self.budget - self._spent())
            limit = limit if own_limit is None else min(own_limit, limit)
            limited = config.training.model_copy(update={"max_time": limit})
            config = config.model_copy(update={"training": limited})
        try:
            summary = train_in_processes(config, config.devices, quiet=True, resume_auto=True)
        except HastenError as error:
            located = HastenError(f"{name}, seed {seed}: {error} (repeat the command to continue)")
            located.code, located.exit_code = error.code, error.exit_code
            raise located from error
        if summary.stopped_by == "max_time" and limit not in (None, own_limit):
            return False
        self.finished(path)
        return True


def _seconds(run: Path) -> float:
    return float(read_summary(RunFolder(run, None)).seconds["total"])
