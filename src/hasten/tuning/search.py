"""Train the defaults and the trials of a tuning, within its budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten import run as runs
from hasten.config import RunConfig
from hasten.config_loading.build import build_config, load_config
from hasten.errors import HastenError, Interrupted, UsageError, first_line, is_out_of_memory
from hasten.models.interface import Model
from hasten.models.search_space import SearchSpace
from hasten.models.supports import Supports
from hasten.registry import load_model
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary
from hasten.tuning.halving import Step, Trial, last_step, next_step, rungs
from hasten.tuning.space import suggest, with_defaults
from hasten.tuning.study import Study

#: failed trials in a row that end the search
_FAILURES = 5
#: seconds that a run has at least, when the budget is almost used
_MIN_RUN_SECONDS = 1.0


@dataclass(frozen=True)
class Limits:
    """When a tuning ends. seconds, trials: None: no such limit.

    equal: the defaults get as much time (without a limit of seconds: as many epochs) as the search,
    with other seeds.
    """

    seconds: float | None
    trials: int | None
    equal: bool


class Search:
    """The runs of a tuning in its folder; :meth:`run` trains what is missing."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        space: SearchSpace,
        limits: Limits,
        say: Callable[[str], object],
    ) -> None:
        self.folder, self.config, self.space, self.limits = folder, config, space, limits
        self.say, self.metric = say, config.evaluation.metrics[0]
        self.study = Study(folder, self.metric)
        self.model: type[Model] = load_model(config.model.name)
        self.steps = Supports.of(self.model).gradient_steps

    def trial_path(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.folder / "runs" / f"trial-{number:03d}"

    def defaults_path(self, seed: int) -> Path:
        """The run folder of the defaults with this seed."""
        return self.folder / "runs" / f"defaults-seed{seed}"

    @property
    def defaults(self) -> dict[int, dict[str, Any]]:
        """What is known of the defaults by seed: ``best``, ``epochs``, ``seconds``, ``done``."""
        by_seed = self.study.study.user_attrs.get("defaults", {})
        return {int(seed): values for seed, values in by_seed.items()}

    def run(self) -> None:
        """Train the defaults, search, and train the defaults as long as the search took."""
        share = 0.5 if self._equal else 1.0
        seconds = self.limits.seconds
        self._train_defaults(self.config.seed, None if seconds is None else share * seconds)
        self.base = load_config(self.defaults_path(self.config.seed) / "config.yaml")
        epochs = self.base.training.epochs if self.steps else 1
        self.rungs = rungs(epochs, self.base.evaluation.every) if self.steps else [1]
        limit = None
        if seconds is not None:
            limit = share * seconds - (0.0 if self._equal else self.spent("defaults"))
        failures: list[str] = []
        while (step := self._next(limit)) is not None:
            error = self._take(step, limit)
            failures = [] if error is None else [*failures, error]
            if len(failures) == _FAILURES:
                raise HastenError(f"{_FAILURES} trials in a row failed; the last: {failures[-1]}")
        self._train_equally()

    @property
    def _equal(self) -> bool:
        return self.limits.equal and self.steps  # a fitted model is the same for every seed

    def spent(self, what: str, unit: str = "seconds") -> float:
        """The seconds (or epochs) of the ``defaults`` or of the ``search`` so far."""
        if what == "defaults":
            return float(sum(values[unit] for values in self.defaults.values()))
        return float(sum(trial.user_attrs.get(unit, 0) for trial in self.study.frozen()))

    def _next(self, limit: float | None) -> Step | None:
        """The next step; None if the search has ended. limit: of its seconds."""
        trials = self.study.trials()
        most = self.limits.trials
        start = most is None or len(self.study.frozen()) < most
        step = next_step(trials, self.rungs, start)
        if step is None or limit is None:
            return step
        left = limit - self.spent("search")
        last = last_step(trials, self.rungs[-1])
        if last is not None and self._expected(step, trials) + self._expected(last, trials) > left:
            step = last  # what is left is for the best one
        return step if self._expected(step, trials) <= left else None

    def _expected(self, step: Step, trials: list[Trial]) -> float:
        """The seconds that a step will probably take, from its epochs so far, or those of all."""
        frozen = self.study.frozen()
        attributes = frozen[step.number].user_attrs if step.number is not None else {}
        of = [attributes] if attributes.get("epochs") else [t.user_attrs for t in frozen]
        of = of if any(each.get("epochs") for each in of) else list(self.defaults.values())
        per_epoch = sum(each.get("seconds", 0) for each in of) / max(
            1, sum(each.get("epochs", 0) for each in of)
        )
        return float(per_epoch * (step.target - attributes.get("epochs", 0)))

    def _take(self, step: Step, limit: float | None) -> str | None:
        """Train a trial to the rung of this step; the error, if it failed."""
        start_time, number = time.monotonic(), step.number
        if number is None:
            number, _ = self.study.ask(
                self.config.seed, step.target, lambda trial: suggest(trial, self.space, self.base)
            )
        else:
            self.study.set(number, target=step.target)
        trial = self.study.frozen()[number]
        before = trial.user_attrs.get("seconds", 0.0)
        left = None if limit is None else limit - self.spent("search")
        try:
            summary = self._train(
                self.trial_path(number), lambda: self._configured(trial.params), step.target, left
            )
        except (HastenError, RuntimeError, MemoryError) as error:
            if isinstance(error, Interrupted) or not (
                isinstance(error, HastenError) or is_out_of_memory(error)
            ):
                raise
            self.study.set(number, seconds=before + time.monotonic() - start_time)
            self.study.fail(number, first_line(error))
            self.say(f"trial {number}: failed: {first_line(error)}")
            return first_line(error)
        value = self._value(summary)
        self.study.set(
            number,
            seconds=before + time.monotonic() - start_time,
            epochs=summary.epochs,
            best=value,
        )
        cut = summary.stopped_by == "max_time"
        if not cut:
            self.study.report(number, step.target, value, step.target == self.rungs[-1])
        about = ", ".join(f"{key}={_short(v)}" for key, v in trial.params.items())
        when = f"epoch {summary.epochs} of {self.rungs[-1]}{', cut by the budget' if cut else ''}"
        self.say(f"trial {number}: {self.metric} {value:.4f} at {when}  ({about})")
        return None

    def _configured(self, chosen: Mapping[str, Any]) -> RunConfig:
        """The configuration of a trial: that of the defaults, with its choice."""
        file = self.defaults_path(self.config.seed) / "config.yaml"
        flags = {**with_defaults(chosen, self.base), "training.max_time": None}
        return build_config(self.model.name, None, file, (), flags)

    def _train_defaults(self, seed: int, limit: float | None) -> None:
        """Train the defaults with a seed to their end. Raises HastenError if they are cut."""
        known = self.defaults.get(seed, {})
        if known.get("done"):
            return
        start_time, before = time.monotonic(), known.get("seconds", 0.0)
        left = None if limit is None else limit - before
        summary = self._train(
            self.defaults_path(seed),
            lambda: self.config.model_copy(update={"seed": seed}),
            None,
            left,
        )
        value, cut = self._value(summary), summary.stopped_by == "max_time"
        seconds = before + time.monotonic() - start_time
        values = {"best": value, "epochs": summary.epochs, "seconds": seconds, "done": not cut}
        by_seed = {str(each): result for each, result in {**self.defaults, seed: values}.items()}
        self.study.study.set_user_attr("defaults", by_seed)
        self.say(f"defaults, seed {seed}: {self.metric} {value:.4f} after {summary.epochs} epochs")
        if cut and seed == self.config.seed:
            share = "half of the budget" if self._equal else "budget"
            raise HastenError(
                f"the {share} ({limit:.0f} s) is too small to train the defaults: they reached "
                f"epoch {summary.epochs}; repeat the command with a larger --budget to continue, "
                "or shorten the runs with --epochs in another folder"
            )

    def _train_equally(self) -> None:
        """Train the defaults with further seeds while they have had less than the search."""
        unit = "epochs" if self.limits.seconds is None else "seconds"
        seed, budget = self.config.seed + 1, self.limits.seconds
        while self._equal:
            known = self.defaults
            mean = self.spent("defaults", unit) / len(known)
            if self.spent("defaults", unit) + mean > self.spent("search", unit):
                break
            left = None if budget is None else budget - self.spent("search") - self.spent(
                "defaults"
            ) + known.get(seed, {}).get("seconds", 0.0)  # fmt: skip
            self._train_defaults(seed, left)
            seed += 1

    def _train(
        self, path: Path, config: Callable[[], RunConfig], until: int | None, left: float | None
    ) -> Summary:
        """Train a run to an epoch, or continue it there from its last checkpoint."""
        limit = None if left is None or not self.steps else max(_MIN_RUN_SECONDS, left)
        if RunFolder.holds_run(path):
            changes = {"training.max_time": limit} if self.steps else {}
            return runs.resume(path, until=until, changes=changes, quiet=True)
        built = config()
        training = built.training.model_copy(update={"max_time": limit})
        built = built.model_copy(update={"out": path, "training": training})
        stop = () if until is None else (lambda report: report.number >= until,)
        return runs.train(built, quiet=True, callbacks=stop)

    def _value(self, summary: Summary) -> float:
        if self.metric not in summary.valid:
            raise UsageError(
                "nothing to select by: the data have no validation part (data.split, data.ratios)"
            )
        return float(summary.valid[self.metric])


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
