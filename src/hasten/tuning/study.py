"""The trials of a tuning, in Optuna's journal storage: ``optuna.log`` in its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import UsageError
from hasten.evaluation.metrics import higher_is_better
from hasten.tuning.halving import Trial

if TYPE_CHECKING:
    import optuna

JOURNAL = "optuna.log"
#: fewer trials than this tell nothing about the importance of options
_MIN_TRIALS = 6


class Study:
    """The study of a tuning.

    A trial is RUNNING while it can be promoted, COMPLETE at the last rung, FAIL after an error. Its
    attributes: ``target`` (epochs), ``epochs``, ``seconds``, ``best`` (validation), ``error``.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        if find_spec("optuna") is None:
            raise UsageError("hasten tune needs Optuna: pip install 'hasten[tune]'")
        import optuna  # noqa: PLC0415 - optional
        from optuna.storages import JournalStorage  # noqa: PLC0415
        from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        better = higher_is_better(metric)
        self.direction: Literal["maximize", "minimize"] = "maximize" if better else "minimize"
        self.sign = 1.0 if self.direction == "maximize" else -1.0
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name="hasten",
            direction=self.direction,
            load_if_exists=True,
        )

    def frozen(self) -> list[optuna.trial.FrozenTrial]:
        """All trials, as Optuna keeps them."""
        return self.study.get_trials(deepcopy=False)

    def trials(self) -> list[Trial]:
        """The trials without those that failed."""
        return [
            Trial(
                trial.number,
                trial.user_attrs["target"],
                {step: self.sign * value for step, value in trial.intermediate_values.items()},
            )
            for trial in self.frozen()
            if "error" not in trial.user_attrs
        ]

    def ask(
        self, seed: int, target: int, choose: Callable[[optuna.Trial], dict[str, Any]]
    ) -> tuple[int, dict[str, Any]]:
        """Begin a new trial; its number and its settings.

        They depend on the seed and the finished rungs alone, not on interruptions.
        """
        import optuna  # noqa: PLC0415 - optional

        number = len(self.frozen())
        view = self._view(lambda trial: trial.intermediate_values)
        view.sampler = optuna.samplers.TPESampler(seed=(1_000_003 * seed + number) % 2**32)
        asked = view.ask()
        chosen = choose(asked)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=asked.params,
                distributions=asked.distributions,
                user_attrs={"target": target},
            )
        )
        return number, chosen

    def _view(self, values: Callable[[optuna.trial.FrozenTrial], dict[int, float]]) -> optuna.Study:
        """A study in memory, in which trials that wait count by the values that they have."""
        import optuna  # noqa: PLC0415 - optional

        view = optuna.create_study(direction=self.direction)
        for trial in self.frozen():
            if "error" not in trial.user_attrs and (intermediate := values(trial)):
                view.add_trial(
                    optuna.trial.create_trial(
                        state=optuna.trial.TrialState.PRUNED,
                        params=trial.params,
                        distributions=trial.distributions,
                        intermediate_values=intermediate,
                    )
                )
        return view

    def set(self, number: int, **attributes: Any) -> None:
        """Set attributes of a trial."""
        for name, value in attributes.items():
            self._live(number).set_user_attr(name, value)

    def report(self, number: int, rung: int, value: float, last: bool) -> None:
        """The best validation value of a trial up to a rung. last: it was trained to its end."""
        import optuna  # noqa: PLC0415 - optional

        self._live(number).report(value, rung)
        if last:
            self.study.tell(number, value, state=optuna.trial.TrialState.COMPLETE)

    def fail(self, number: int, error: str) -> None:
        """End a trial with an error."""
        import optuna  # noqa: PLC0415 - optional

        self.set(number, error=error)
        self.study.tell(number, state=optuna.trial.TrialState.FAIL)

    def _live(self, number: int) -> optuna.Trial:
        import optuna  # noqa: PLC0415 - optional

        return optuna.Trial(self.study, self.frozen()[number]._trial_id)

    def importance(self, rung: int) -> dict[str, float]:
        """The share of each option in good results (PED-ANOVA), at the first rung.

        All trials have been there, so they are compared after the same epochs. Empty for few
        trials, or if all have the same value.
        """
        import optuna  # noqa: PLC0415 - optional

        view = optuna.create_study(direction=self.direction)
        for trial in self._view(lambda t: t.intermediate_values).get_trials(deepcopy=False):
            if rung in trial.intermediate_values:
                view.add_trial(
                    optuna.trial.create_trial(
                        params=trial.params,
                        distributions=trial.distributions,
                        value=trial.intermediate_values[rung],
                    )
                )
        values = {trial.value for trial in view.get_trials(deepcopy=False)}
        if len(view.trials) < _MIN_TRIALS or len(values) == 1:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # options that a condition leaves out of some trials
            return dict(
                optuna.importance.get_param_importances(
                    view, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
                )
            )
