"""Link prediction with a trained model: the best tails, heads or relations of triples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store.mapped import triple_blocks
from hasten.data.tables import KnowledgeGraph, Vocabulary
from hasten.errors import UsageError
from hasten.evaluation.candidate_ranges import ranges_of
from hasten.evaluation.ranker import scoring
from hasten.evaluation.top_k import top_k
from hasten.inference.inputs import TRIPLE
from hasten.inference.labels import indices_of
from hasten.inference.table_view import TableResult
from hasten.objectives.triple_queries import known_answers
from hasten.scoring import TripleQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

Known = Literal["filter", "mark"]


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(TableResult):
    """n predicted triples, best first for each query.

    triples: int64 [n, 3] head, relation, tail; question: int64 [n], the query; open: the predicted
    part of each query; rank: int32 [n] from 1; score: float32 [n]; known: bool [n], whether the
    triple is in the data.
    """

    entities: Vocabulary
    relations: Vocabulary
    question: Int64
    open: tuple[str, ...]
    triples: Int64
    rank: NDArray[np.int32]
    score: NDArray[np.float32]
    known: NDArray[np.bool_]
    topk: int

    def __len__(self) -> int:
        return len(self.rank)

    def to_table(self) -> pa.Table:
        """Columns question, asked, head, relation, tail, rank, score, known, and names if any."""
        vocabularies = (self.entities, self.relations, self.entities)
        searched = pa.array(self.open, pa.string())
        columns: dict[str, Any] = {
            "question": pa.array(self.question + 1),
            "asked": searched.take(pa.array(self.question)),
        }
        names: dict[str, Any] = {}
        for name, vocabulary, indices in zip(TRIPLE, vocabularies, self.triples.T, strict=True):
            columns[name] = vocabulary.take(indices)
            if vocabulary.names is not None:
                names[f"{name}_name"] = vocabulary.names.take(pa.array(indices))
        columns |= {"rank": self.rank, "score": self.score, "known": self.known, **names}
        return pa.table(columns)


def predict(
    loaded: LoadedRun,
    questions: Sequence[Mapping[str, object]],
    topk: int = 10,
    *,
    known: Known = "filter",
) -> Predictions:
    """Predict the ``topk`` best values of the missing part of each query.

    questions: each with two of head, relation and tail. known: ``filter`` omits triples of the data
    (train, valid and test), ``mark`` keeps them. In a typed graph, only triples whose ends have the
    types of the relation are predicted. The score of a relation is the mean of its scores in tail
    prediction and in head prediction.
    Raises DataError for unknown labels, UsageError if the model or the arguments do not allow it.
    """
    graph = loaded.dataset
    if not isinstance(graph, KnowledgeGraph):
        raise UsageError(f"{loaded.config.model.name} does not complete triples: hasten recommend")
    if topk < 1:
        raise UsageError(f"topk {topk}: must be 1 or more")
    ends = _indices(graph, questions)
    blocks = []
    for number, name in enumerate(TRIPLE):
        rows = np.flatnonzero(ends[:, number] < 0)
        if len(rows):
            answer = _relations if name == "relation" else _entities
            blocks.append(answer(loaded, graph, ends[rows], rows, topk, known))
    row, triples, place, score, is_known = (np.concatenate(c) for c in zip(*blocks, strict=True))
    order = np.lexsort((place, row))
    open_ends = tuple(TRIPLE[number] for number in np.argmin(ends, axis=1))
    return Predictions(
        graph.entities,
        graph.relations,
        row[order],
        open_ends,
        triples[order],
        (place[order] + 1).astype(np.int32),
        score[order],
        is_known[order],
        topk,
    )


def _indices(graph: KnowledgeGraph, questions: Sequence[Mapping[str, object]]) -> Int64:
    """[Q, 3] head, relation, tail; -1 for the missing part."""
    ends = np.full((len(questions), 3), -1, np.int64)
    if not questions:
        raise UsageError("0 questions are asked: give at least one")
    for question in questions:
        if len(question) != 2 or not set(question) <= set(TRIPLE):
            raise UsageError("two of head, relation and tail ask for the third: give exactly two")
    for number, name in enumerate(TRIPLE):
        rows = [i for i, question in enumerate(questions) if name in question]
        vocabulary = graph.relations if name == "relation" else graph.entities
        kind = "relation" if name == "relation" else "entity"
        labels = [questions[i][name] for i in rows]
        if labels:
            remedy = "only what stands in the run's data can be asked about"
            ends[rows, number] = indices_of(vocabulary, labels, kind, remedy)
    return ends


Found = tuple[Int64, Int64, Int64, NDArray[np.float32], NDArray[np.bool_]]


def _entities(
    loaded: LoadedRun,
    graph: KnowledgeGraph,
    ends: Int64,
    rows: Int64,
    topk: int,
    known: Known,
) -> Found:
    """Query, triple, place, score and whether known, for queries of heads or of tails."""
    entities, relations = len(graph.entities), len(graph.relations)
    for_heads = bool((ends[0] < 0)[0])
    query_entities = ends[:, 2] if for_heads else ends[:, 0]
    queries = TripleQueries(query_entities, ends[:, 1] + (relations if for_heads else 0))
    answers = known_answers(triple_blocks(graph), relations, queries, entities)
    hidden = answers if known == "filter" else None
    ranges = ranges_of(graph, queries.relation)
    row, entity, place, score = top_k(loaded.model, queries, entities, topk, hidden, ranges=ranges)
    triples = ends[row].copy()
    triples[:, 0 if for_heads else 2] = entity
    is_known = np.isin(row * entities + entity, answers.rows * entities + answers.items)
    return rows[row], triples, place, score, is_known


def _relations(
    loaded: LoadedRun,
    graph: KnowledgeGraph,
    ends: Int64,
    rows: Int64,
    topk: int,
    known: Known,
) -> Found:
    """The same for queries of relations, which are scored in both directions."""
    model = loaded.model
    count = len(graph.relations)
    every = np.arange(count, dtype=np.int64)
    facts, types = graph.triples, NodeTypes.of(graph)
    code = types.code
    parts: list[Found] = []
    with scoring(model):
        for number, (head, _, tail) in zip(rows.tolist(), ends.tolist(), strict=True):
            score = np.zeros(count, np.float32)
            for query, relation, answer in ((head, every, tail), (tail, every + count, head)):
                scorer = model.scorer(TripleQueries(np.full(count, query), relation))
                score += scorer.block(answer, answer + 1)[:, 0].float().cpu().numpy() / 2
            is_known = np.zeros(count, bool)
            is_known[facts.relation[(facts.head == head) & (facts.tail == tail)]] = True
            fits = (types.source == code[head]) & (types.target == code[tail])
            free = every[fits & ~is_known] if known == "filter" else every[fits]
            best = free[np.lexsort((free, -score[free]))][:topk]
            triples = np.stack([np.full_like(best, head), best, np.full_like(best, tail)], axis=1)
            place = np.arange(len(best))
            parts.append((np.full_like(best, number), triples, place, score[best], is_known[best]))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return cast(Found, tuple(columns))
