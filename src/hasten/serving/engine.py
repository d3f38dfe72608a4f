"""Score batches of requests with a loaded model.

Questions are resolved from labels to indices when they arrive, so that an error concerns one
request; :meth:`Engine.answer` then scores all questions of a kind at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.data.columns.times import PER_SECOND
from hasten.data.event_features import EventEntries
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Histories, KnowledgeGraph, Vocabulary
from hasten.errors import HastenError, UsageError
from hasten.evaluation.candidate_ranges import ranges_of
from hasten.evaluation.top_k import batch_top_k
from hasten.inference.new_histories import entries_of
from hasten.inference.vectors import vectors
from hasten.objectives.triple_queries import group_queries
from hasten.ops.graph.csr import CSR
from hasten.runs import __version__
from hasten.scoring import RecommenderQueries, TripleQueries
from hasten.serving.schema import PredictBody, RecommendBody, SimilarBody

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

_NONE = np.zeros(0, np.int64)


class Unknown(HastenError):
    """A label that the run does not know."""

    code = "unknown"


@dataclass(frozen=True, eq=False)
class Question:
    """One question by indices.

    kind: "recommend", "similar" or "predict". first: the user (-1: none), item or entity; relation:
    r + R asks for heads. history, times and features are those of a recommendation. hidden:
    candidates that must not be returned.
    """

    kind: str
    first: int
    k: int
    relation: int = -1
    history: Int64 = field(default_factory=lambda: _NONE)
    times: Int64 | None = None
    features: EventEntries | None = None
    hidden: Int64 = field(default_factory=lambda: _NONE)


#: indices, best first, and scores
Answer = tuple[list[int], list[float]]


class Labels:
    """Labels by index and back."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.labels = vocabulary.labels.to_pylist()
        self.index = {str(label): number for number, label in enumerate(self.labels)}
        self.names = None if vocabulary.names is None else vocabulary.names.to_pylist()

    def require(self, label: object, kind: str, remedy: str) -> int:
        """The index of a label. Raises Unknown."""
        index = self.index.get(str(label))
        if index is None:
            raise Unknown(f"{kind} {label!r} is unknown to the run; {remedy}")
        return index

    def known(self, labels: Sequence[object]) -> list[int]:
        """Indices of the labels, -1 for unknown ones."""
        return [self.index.get(str(label), -1) for label in labels]


class Engine:
    """A loaded model, ready to answer."""

    def __init__(self, loaded: LoadedRun) -> None:
        self.loaded, self.model = loaded, loaded.model.eval()
        dataset = loaded.dataset
        self.graph = dataset if isinstance(dataset, KnowledgeGraph) else None
        self.items = Labels(
            dataset.entities if isinstance(dataset, KnowledgeGraph) else dataset.items
        )
        if isinstance(dataset, KnowledgeGraph):
            self.relations = Labels(dataset.relations)
            grouped = group_queries(dataset.triples, len(dataset.relations), len(dataset.entities))
            self.answers = grouped.targets.distinct()
            self.codes = grouped.queries.relation * len(dataset.entities) + grouped.queries.entity
        else:
            self.users = Labels(dataset.users)
            self.histories = dataset.histories(TRAIN, VALID, TEST)
        try:
            self.unit: Tensor | None = F.normalize(torch.from_numpy(vectors(loaded).vectors))
        except UsageError as error:
            self.unit, self.no_vectors = None, str(error)
        self._kept = ExitStack()
        with torch.inference_mode():
            self._kept.enter_context(self.model.encoded_once())

    def close(self) -> None:
        """Drop the encoding of the graph."""
        self._kept.close()

    def about(self) -> dict[str, str]:
        """What is served."""
        loaded = self.loaded
        return {
            "model": loaded.config.model.name,
            "data": loaded.dataset.name,
            "run": loaded.path.name,
            "version": __version__,
        }

    def recommendation(self, body: RecommendBody) -> tuple[Question, int]:
        """The question, and the number of unknown items in it. Raises HastenError."""
        model = self.model
        if self.graph is not None:
            raise UsageError(f"{model.name} completes triples and recommends nothing: /predict")
        if (body.user is None) == (body.history is None):
            raise UsageError("give either user or history")
        by_item = {f"values of {name}": cells for name, cells in body.features.items()}
        for what, values in {"times": body.times, **by_item}.items():
            if values is not None and len(values) != len(body.history or ()):
                raise UsageError(f"{what} belong to a history, with one for each of its items")
        hidden = self.items.known(body.exclude)
        ignored, times = hidden.count(-1), None
        if body.user is not None:
            remedy = "give a history" if model.scores_new_users else "only known users have scores"
            user = self.users.require(body.user, "user", remedy)
            known = self.histories.take(np.array([user]))
            history, times, features = known.items, known.times, known.features
        else:
            if not model.scores_new_users:
                raise UsageError(f"{model.name} cannot score a history; ask for a known user")
            user, indices = -1, np.array(self.items.known(body.history or ()), np.int64)
            places = np.flatnonzero(indices >= 0)
            ignored += len(indices) - len(places)
            if not len(places):
                raise Unknown("no item of the history is known to the run")
            if body.times is not None:
                options: Any = self.loaded.config.data
                seconds = np.array(body.times) / PER_SECOND[options.time_unit]
                places = places[np.argsort(seconds[places], kind="stable")]
                times = np.floor(seconds[places]).astype(np.int64)
            history = indices[places]
            assert isinstance(self.loaded.dataset, Dataset)
            features, unknown = entries_of(self.loaded.dataset, body.features, len(indices))
            ignored += unknown
            features = None if features is None else features.take(places)
        seen = [] if body.include_seen else history.tolist()
        hidden_items = np.array(sorted({*seen, *(i for i in hidden if i >= 0)}), np.int64)
        question = Question("recommend", user, body.k, -1, history, times, features, hidden_items)
        return question, ignored

    def similarity(self, body: SimilarBody) -> Question:
        """The question for the nearest items. Raises HastenError."""
        if self.unit is None:
            raise UsageError(self.no_vectors)
        kind = "item" if self.graph is None else "entity"
        return Question("similar", self.items.require(body.item, kind, "check the id"), body.k)

    def prediction(self, body: PredictBody) -> tuple[Question, Int64]:
        """The question, and its known answers. Raises HastenError."""
        if self.graph is None:
            raise UsageError(f"{self.model.name} recommends items and completes no triples")
        if (body.head is None) == (body.tail is None):
            raise UsageError("give either head or tail: the other one is predicted")
        first = ", ".join(repr(label) for label in self.relations.labels[:10])
        more = ", ..." if len(self.relations.labels) > 10 else ""
        relation = self.relations.require(body.relation, "relation", f"there are {first}{more}")
        entity_label = body.head if body.tail is None else body.tail
        entity = self.items.require(entity_label, "entity", "check the id")
        relation += 0 if body.tail is None else len(self.relations.labels)
        code = relation * len(self.items.labels) + entity
        index = int(np.searchsorted(self.codes, code))
        there = index < len(self.codes) and self.codes[index] == code
        known = self.answers.row(index) if there else _NONE
        hidden = _NONE if body.include_known else known
        return Question("predict", entity, body.k, relation, hidden=hidden), known

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers, in the order of the questions; those of a kind are scored together."""
        answers: list[Answer] = [([], [])] * len(questions)
        with torch.inference_mode():
            for kind in {(question.kind, question.times is None) for question in questions}:
                rows = [
                    row
                    for row, question in enumerate(questions)
                    if (question.kind, question.times is None) == kind
                ]
                item_ids, scores = self._answer([questions[row] for row in rows])
                for row, ids, values in zip(rows, item_ids, scores, strict=True):
                    count = min(questions[row].k, int(np.count_nonzero(ids >= 0)))
                    answers[row] = ids[:count].tolist(), values[:count].tolist()
        return answers

    def _answer(self, asked: Sequence[Question]) -> tuple[Any, Any]:
        """Indices and scores [Q, k] of questions of one kind."""
        first = np.array([question.first for question in asked])
        k = max(question.k for question in asked)
        if asked[0].kind == "similar":
            return self._nearest(torch.from_numpy(first), k)
        hidden = CSR(*_ragged([question.hidden for question in asked]))
        queries: RecommenderQueries | TripleQueries
        ranges = None
        if asked[0].kind == "predict":
            queries = TripleQueries(first, np.array([question.relation for question in asked]))
            assert self.graph is not None
            ranges = ranges_of(self.graph, queries.relation)
        else:
            offsets, items = _ragged([question.history for question in asked])
            times = [question.times for question in asked if question.times is not None]
            features = [question.features for question in asked if question.features is not None]
            history = Histories(
                offsets,
                items,
                np.concatenate(times) if times else None,
                features=EventEntries.joined(features),
            )
            queries = RecommenderQueries(first, history)
        count = len(self.items.labels)
        ids, scores = batch_top_k(self.model, queries, count, k, hidden, ranges=ranges)
        return ids.cpu().numpy(), scores.cpu().numpy()

    def _nearest(self, rows: Tensor, k: int) -> tuple[Any, Any]:
        assert self.unit is not None
        cosine = self.unit[rows] @ self.unit.T
        cosine[torch.arange(len(rows)), rows] = -torch.inf
        values, places = cosine.topk(min(k, len(self.unit) - 1))
        return places.numpy(), values.numpy()


def _ragged(rows: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Offsets and elements of the concatenated rows."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.concatenate(rows)
