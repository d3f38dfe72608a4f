"""The records and the log line of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hasten.evaluation.ranker import Evaluation
from hasten.runs.journal import Journal, RankLog
from hasten.runs.progress import Progress

#: smaller losses, such as penalties, are shown in scientific notation
_SMALL = 1e-3


@dataclass(frozen=True)
class EpochReport:
    """What an epoch produced.

    number: from 1; step: optimizer steps of the run so far; memory: the peak, as text.
    """

    number: int
    step: int
    losses: Mapping[str, float]
    lr: float
    seconds: float
    examples_per_second: float
    memory: str
    evaluation: Evaluation | None
    #: whether the evaluation is the best so far
    best: bool

    @property
    def valid(self) -> dict[str, float]:
        """The validation metrics; empty after an epoch without evaluation."""
        return {} if self.evaluation is None else dict(self.evaluation.values)

    def write(self, journal: Journal | RankLog, progress: Progress, metric: str) -> None:
        """Write metrics, logs and the progress bar; metric: the one that selects the model."""
        number, evaluation = self.number, self.evaluation
        seconds = {
            "seconds": round(self.seconds, 4),
            "examples_per_second": round(self.examples_per_second, 1),
        }
        if evaluation is not None:
            self._write_diagnostics(journal, evaluation)
        journal.record("train", number, self.step, {**self.losses, "lr": self.lr, **seconds})
        small = {name: 0 < abs(value) < _SMALL for name, value in self.losses.items()}
        text = " ".join(
            f"{name} {value:{'.1e' if small[name] else '.4f'}}"
            for name, value in self.losses.items()
        )
        line = (
            f"epoch {number}  {text}  {self.seconds:.1f} s  "
            f"{self.examples_per_second:,.0f} examples/s  {self.memory}"
        )
        if evaluation is not None:
            shown = evaluation.text()
            shown += "  best so far" if self.best else ""
            journal.record("valid", number, self.step, evaluation.values)
            journal.log_valid(f"epoch {number}  {shown}")
            progress.note(**{metric: evaluation.values[metric]})
            line += f"  valid {shown}"
        progress.note(examples_per_second=self.examples_per_second)
        journal.log_train(line)

    def _write_diagnostics(self, journal: Journal | RankLog, evaluation: Evaluation) -> None:
        """Record the diagnostics of the embeddings, and warn if they show a collapse."""
        diagnostics = evaluation.diagnostics
        if diagnostics is None:
            return
        journal.record("health", self.number, self.step, diagnostics.figures)
        if diagnostics.warning is not None:
            journal.warn(f"epoch {self.number}: {diagnostics.warning}")


#: called after each epoch; True ends the run, which can be resumed
Callback = Callable[[EpochReport], object]
