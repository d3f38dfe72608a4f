"""Return values of the Python API: a training run with its metrics, and a loaded run."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.inference.embed import Embeddings
from hasten.inference.predict import Predictions, predict
from hasten.inference.recommend import Recommendations, Until, recommend
from hasten.inference.table_view import html_table
from hasten.inference.vectors import SimilarItems, similar_items, vectors
from hasten.loaded_run import LoadedRun, load_run
from hasten.models.interface import Sizes
from hasten.reporting.report import Report, report
from hasten.runs.ending import ending
from hasten.runs.summary import Summary

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """The result of a training run: metrics, run folder and trained model."""

    def __init__(self, summary: Summary, update: Mapping[str, Any] | None = None) -> None:
        self.summary = summary
        #: of an updated run, the content of ``update.json``
        self.update = update
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

    def report(self, out: str | Path | None = None, **options: Any) -> Report:
        """As :meth:`Run.report`."""
        return report(self.path, out=out, **options)

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
        paragraphs = (
            f"{summary.model} on {summary.data}: {self.path}",
            self.protocol,
            *ending(summary),
        )
        lines = "".join(f"<p>{html.escape(text)}</p>" for text in paragraphs)
        return lines + html_table(("metric", "valid", "test"), rows)


@dataclass(frozen=True, repr=False)
class Run(LoadedRun):
    """A trained model and its data, loaded from a run folder: recommend, predict, read vectors."""

    def recommend(self, users: object = None, topk: int = 10, **options: Any) -> Recommendations:
        """The ``topk`` best items of each user.

        users: one id or several; None: all users, or those of the option ``histories`` if given.
        Other options: :func:`hasten.inference.recommend.recommend`.
        """
        return recommend(self, users=users, topk=topk, **options)

    def predict(
        self, questions: Sequence[Mapping[str, Any]], topk: int = 10, **options: Any
    ) -> Predictions:
        """Predict the missing part of triples.

        questions: mappings with two of head, relation and tail, such as
        ``{"head": "a", "relation": "r"}``. Options: :func:`hasten.inference.predict.predict`.
        """
        return predict(self, questions, topk=topk, **options)

    def item_vectors(self) -> Embeddings:
        """The vectors of the items, as :class:`Embeddings` with ``vectors`` [N, D] and ``ids``.

        Raises HastenError if the model scores without item vectors.
        """
        return vectors(self, "items")

    def user_vectors(self, until: Until = "test") -> Embeddings:
        """The vectors of the users. until: the last part of the data that histories include."""
        return vectors(self, "users", until)

    def entity_vectors(self) -> Embeddings:
        """The vectors of the entities of a knowledge graph."""
        return vectors(self, "entities")

    def similar_items(self, items: object, k: int = 10) -> SimilarItems:
        """The ``k`` most similar items of an item, or of each of several, by cosine."""
        return similar_items(self, items, k)

    def report(self, out: str | Path | None = None, **options: Any) -> Report:
        """A report of the run, written to ``out``; options: :func:`hasten.report`."""
        return report(self.path, out=out, **options)

    def __repr__(self) -> str:
        sizes = [f"{n:,} {kind}" for kind, n in vars(Sizes.of(self.dataset)).items()
                 if isinstance(n, int) and n]  # fmt: skip
        trained = f"{self.config.model.name} on {self.dataset.name}"
        return f"<hasten run {self.path}: {trained}, {', '.join(sizes)}; on {self.device}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>"


def load(run: str | Path, checkpoint: str = "best", device: str = "auto") -> Run:
    """Load the model and the data of a run folder."""
    return Run(**vars(load_run(Path(run), checkpoint=checkpoint, device=device)))
