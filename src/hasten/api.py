"""The Python API: train a model, read its metrics, recommend."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.build import with_sample
from hasten.config_loading.build import build_config
from hasten.config_loading.units import parse_size
from hasten.distributed.launch import processes_to_start
from hasten.errors import UsageError
from hasten.inference.embed import Embeddings
from hasten.inference.predict import Predictions, predict
from hasten.inference.recommend import Recommendations, Until, recommend
from hasten.inference.table_view import html_table
from hasten.inference.vectors import SimilarItems, similar_items, vectors
from hasten.loaded_run import LoadedRun, load_run
from hasten.models.interface import Sizes
from hasten.planning.budget import fit_run
from hasten.planning.plan import Plan, plan_run
from hasten.run import train as train_run
from hasten.run_in_processes import train_in_processes
from hasten.runs.ending import ending
from hasten.runs.run_folder import remove_run
from hasten.runs.summary import Summary
from hasten.training.epoch_report import Callback

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """The result of a training run: metrics, run folder and trained model."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self._loaded: Run | None = None

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
    def loaded(self) -> Run:
        """The trained model (``.model``, in evaluation mode) and its data (``.dataset``)."""
        if self._loaded is None:
            self._loaded = load(self.path)
        return self._loaded

    def recommend(self, users: object = None, topk: int = 10, **options: Any) -> Recommendations:
        """As :meth:`Run.recommend`."""
        return self.loaded.recommend(users, topk, **options)

    def predict(
        self, questions: Sequence[Mapping[str, Any]], topk: int = 10, **options: Any
    ) -> Predictions:
        """As :meth:`Run.predict`."""
        return self.loaded.predict(questions, topk, **options)

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

    def _repr_html_(self) -> str:
        summary = self.summary
        names = list(dict.fromkeys([*summary.valid, *summary.test]))
        rows = [(name, summary.valid.get(name), summary.test.get(name)) for name in names]
        told = (f"{summary.model} on {summary.data}: {self.path}", self.protocol, *ending(summary))
        lines = "".join(f"<p>{html.escape(text)}</p>" for text in told)
        return lines + html_table(("metric", "valid", "test"), rows)


@dataclass(frozen=True, repr=False)
class Run(LoadedRun):
    """The model of a run with the weights of a checkpoint, its data, and what it can do."""

    def recommend(self, users: object = None, topk: int = 10, **options: Any) -> Recommendations:
        """Top items of users (None: all, or of ``histories``).

        Options: :func:`hasten.inference.recommend.recommend`.
        """
        return recommend(self, users=users, topk=topk, **options)

    def predict(
        self, questions: Sequence[Mapping[str, Any]], topk: int = 10, **options: Any
    ) -> Predictions:
        """Predict missing parts of triples; options: :func:`hasten.inference.predict.predict`."""
        return predict(self, questions, topk=topk, **options)

    def item_vectors(self) -> Embeddings:
        """The vectors of the items: ``vectors`` [N, D] and ``ids``. Raises HastenError."""
        return vectors(self, "items")

    def user_vectors(self, until: Until = "test") -> Embeddings:
        """The vectors of the users, from their histories up to a part of the data."""
        return vectors(self, "users", until)

    def entity_vectors(self) -> Embeddings:
        """The vectors of the entities of a knowledge graph."""
        return vectors(self, "entities")

    def similar_items(self, items: object, k: int = 10) -> SimilarItems:
        """The ``k`` most similar items of an item, or of each of several, by cosine."""
        return similar_items(self, items, k)

    def __repr__(self) -> str:
        sizes = [f"{n:,} {kind}" for kind, n in vars(Sizes.of(self.dataset)).items()
                 if isinstance(n, int) and n]  # fmt: skip
        named = f"{self.config.model.name} on {self.dataset.name}"
        return f"<hasten run {self.path}: {named}, {', '.join(sizes)}; on {self.device}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>"


def train(
    model: str = "sasrec",
    data: object | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    refit: bool = False,
    memory_budget: int | str | None = None,
    resume: str | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    **flags: Any,
) -> Result:
    """Train a model and return its :class:`Result`.

    data: a path, a registered name, a pandas/polars/Arrow table or a mapping of arrays; None: the
    built-in sample. settings: dotted configuration keys, ``{"model.width": 128}``; flags: common
    options by name (``epochs=20, lr=1e-3, device="cpu", out="runs/mine"``). refit: train again on
    the training and validation parts, for the selected number of epochs. memory_budget: bytes, or
    text such as "10GB"; chooses settings whose predicted peak memory fits. resume: "auto"
    continues the run in ``out``, if there is one; overwrite: True deletes it and starts again.
    callbacks: functions that are called after each epoch with its report (``number``, ``losses``,
    ``valid``, ...); True as the result ends the run, an exception ends it too and is raised.
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
    if resume not in (None, "auto") or (resume and (overwrite or built.out is None)):
        raise UsageError('resume is None or "auto", which needs out and excludes overwrite')
    if overwrite and built.out is None:
        raise UsageError("overwrite needs out: the folder whose run is replaced")
    auto = resume == "auto"
    count = processes_to_start(built.devices, "devices" in given, built.distributed.master_port)
    if count:
        if table is not None:
            raise UsageError(
                f"devices={count} with a table in memory: several processes read the data from "
                "files; save the table (to Parquet, say) and give its path"
            )
        if callbacks:
            raise UsageError(
                f"callbacks with devices={count}: the new processes cannot call functions of this "
                "one; leave one of the two out, or start the script by torchrun"
            )
        if overwrite and built.out is not None:
            remove_run(built.out)
        return Result(train_in_processes(built, count, quiet=quiet, refit=refit, resume_auto=auto))
    return Result(
        train_run(
            built, table=table, quiet=quiet, refit=refit, plan=planned, resume_auto=auto,
            overwrite=overwrite, callbacks=callbacks,
        )
    )  # fmt: skip


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


def load(run: str | Path, checkpoint: str = "best", device: str = "auto") -> Run:
    """Load the model and the data of a run folder."""
    return Run(**vars(load_run(Path(run), checkpoint=checkpoint, device=device)))
