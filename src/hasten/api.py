"""The Python API: train a model, read its metrics, recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.build import with_sample
from hasten.config_loading.build import build_config
from hasten.config_loading.units import parse_size
from hasten.distributed.launch import processes_to_start
from hasten.errors import UsageError
from hasten.inference.predict import Predictions, predict
from hasten.inference.recommend import Recommendations, recommend
from hasten.loaded_run import LoadedRun, load_run
from hasten.planning.budget import fit_run
from hasten.planning.plan import Plan, plan_run
from hasten.run import train as train_run
from hasten.run_in_processes import train_in_processes
from hasten.runs.summary import Summary

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """The result of a training run: metrics, run folder and trained model."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self._loaded: LoadedRun | None = None

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.summary.run

    @property
    def metrics(self) -> dict[str, float]:
        """Test metrics of the best checkpoint, as selected on validation."""
        return dict(self.summary.test)

    @property
    def valid_metrics(self) -> dict[str, float]:
        """Validation metrics of the same checkpoint."""
        return dict(self.summary.valid)

    @property
    def protocol(self) -> str:
        """The evaluation protocol. Report it with the metrics."""
        return self.summary.protocol

    @property
    def loaded(self) -> LoadedRun:
        """The trained model (``.model``, in evaluation mode) and its data (``.dataset``)."""
        if self._loaded is None:
            self._loaded = load_run(self.path)
        return self._loaded

    def recommend(
        self, users: Sequence[Any] | None = None, topk: int = 10, **options: Any
    ) -> Recommendations:
        """Top items of users (None: all); options as in :func:`hasten.inference.recommend`."""
        return recommend(self.loaded, users=users, topk=topk, **options)

    def predict(
        self, questions: Sequence[Mapping[str, Any]], topk: int = 10, **options: Any
    ) -> Predictions:
        """Predict missing parts of triples; options: :func:`hasten.inference.predict.predict`."""
        return predict(self.loaded, questions, topk=topk, **options)

    def to_frame(self) -> pd.DataFrame:
        """A DataFrame with a row for each metric: part, metric, value, protocol."""
        import pandas as pd  # noqa: PLC0415 - optional

        parts = {"valid": self.summary.valid, "test": self.summary.test}
        rows = [
            {"part": part, "metric": name, "value": value, "protocol": self.protocol}
            for part, values in parts.items()
            for name, value in values.items()
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"<hasten run {self.path}: {shown}>"


def train(
    model: str = "sasrec",
    data: object | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    refit: bool = False,
    memory_budget: int | str | None = None,
    **flags: Any,
) -> Result:
    """Train a model and return its :class:`Result`.

    data: a path, a registered name, a pandas/polars/Arrow table or a mapping of arrays; None: the
    built-in sample. settings: dotted configuration keys, ``{"model.width": 128}``; flags: common
    options by name (``epochs=20, lr=1e-3, device="cpu", out="runs/mine"``). refit: train again on
    the training and validation parts, for the selected number of epochs. memory_budget: bytes, or
    text such as "10GB"; chooses settings whose predicted peak memory fits.
    ``devices=2`` trains in two new processes. They read the data from a path; scripts need no
    ``if __name__`` guard. Under torchrun, each calling process is one of the run's processes.
    Raises hasten.HastenError.
    """
    path = str(data) if isinstance(data, str | Path) else None
    table = None if data is None or path is not None else data
    given = {**(settings or {}), **flags}
    built = build_config(model, path, None if config is None else Path(config), (), given)
    planned: dict[str, Any] | None = None
    if memory_budget is not None:
        if table is not None:
            raise UsageError(
                "memory_budget with a table in memory: the run is planned in a process of its own, "
                "which reads files; save the table (to Parquet, say) and give its path"
            )
        built, planned = fit_run(built, parse_size("memory_budget", memory_budget))
    count = processes_to_start(built.devices, "devices" in given, built.distributed.master_port)
    if count:
        if table is not None:
            raise UsageError(
                f"devices={count} with a table in memory: several processes read the data from "
                "files; save the table (to Parquet, say) and give its path"
            )
        return Result(train_in_processes(built, count, quiet=quiet, refit=refit))
    return Result(train_run(built, table=table, quiet=quiet, refit=refit, plan=planned))


def plan(
    model: str = "sasrec",
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    runs: str | Path | None = "runs",
    **flags: Any,
) -> Plan:
    """Predict memory, time and disk of ``train`` with the same arguments, before it runs.

    Takes a few real steps in a process of its own. data: a path or a registered name. runs: the
    folder whose finished runs with the same settings correct the plan; None: no correction.
    Raises hasten.HastenError.
    """
    if data is not None and not isinstance(data, str | Path):
        raise UsageError(
            "plan with a table in memory: the run is planned in a process of its own, which reads "
            "files; save the table (to Parquet, say) and give its path"
        )
    path = None if data is None else str(data)
    given = {**(settings or {}), **flags}
    built = build_config(model, path, None if config is None else Path(config), (), given)
    return plan_run(with_sample(built), None if runs is None else Path(runs))


def load(run: str | Path, checkpoint: str = "best", device: str = "auto") -> LoadedRun:
    """Load the model and the data of a run folder."""
    return load_run(Path(run), checkpoint=checkpoint, device=device)
