"""Randomly chosen recommendations and predictions, with names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64
from hasten.data.graph_store.mapped import triple_blocks
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, KnowledgeGraph, Vocabulary
from hasten.evaluation.candidate_ranges import ranges_of
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.protocols import AnyTask, RankingTask
from hasten.evaluation.top_k import top_k
from hasten.loaded_run import LoadedRun
from hasten.objectives.triple_queries import known_answers
from hasten.ops.graph.csr import CSR

_EXAMPLES, _LENGTH, _HISTORY = 6, 5, 4


@dataclass(frozen=True)
class Example:
    """A question and its answers, best first: (name, whether it is what happened)."""

    title: str
    note: str
    answers: tuple[tuple[str, bool], ...]


def recommended(dataset: Dataset, task: RankingTask, lists: CSR) -> list[Example]:
    """The lists of a few users, beside the end of their histories and what they chose next."""
    examples = []
    for row in _drawn(len(task.queries)):
        user = int(task.queries.user[row])
        history = task.queries.history
        past = history.items[history.offsets[row] : history.offsets[row + 1]]
        held_out = task.targets.row(row)
        more = len(past) - _HISTORY
        words = ", ".join(_names(dataset.items, past[-_HISTORY:]))
        note = f"After {f'{more:,} others, ' if more > 0 else ''}{words}"
        note += f". Then: {', '.join(_names(dataset.items, held_out[:_LENGTH]))}"
        note += f" and {len(held_out) - _LENGTH} more" if len(held_out) > _LENGTH else ""
        items = lists.row(row)[:_LENGTH]
        hits = np.isin(items, held_out).tolist()
        title = f"User {_names(dataset.users, np.array([user]))[0]}"
        names = _names(dataset.items, items)
        examples.append(Example(title, note, tuple(zip(names, hits, strict=True))))
    return examples


def predicted(loaded: LoadedRun, task: AnyTask, part: int) -> list[Example]:
    """Answers to the queries of a few triples, without those that were known before the part.

    Triples of later parts are candidates like any other, and nothing tells them apart.
    """
    graph = loaded.dataset
    assert isinstance(graph, KnowledgeGraph)
    assert isinstance(task, CompletionTask)
    count = len(graph.relations)
    rows = np.array(_drawn(len(task.queries)), np.int64)
    queries = task.queries.take(rows)
    before = triple_blocks(graph, *((TRAIN,) if part == VALID else (TRAIN, VALID)))
    assert part in (VALID, TEST)
    hidden = known_answers(before, count, queries, len(graph.entities))
    ranges = ranges_of(graph, queries.relation)
    row, entity, _, _ = top_k(
        loaded.model, queries, len(graph.entities), _LENGTH, hidden, ranges=ranges
    )
    examples = []
    for number, query in enumerate(rows.tolist()):
        entity_name = _names(graph.entities, queries.entity[number : number + 1])[0]
        relation = _names(graph.relations, queries.relation[number : number + 1] % count)[0]
        tails = bool(queries.relation[number] < count)
        title = f"{entity_name} → {relation} → ?" if tails else f"? → {relation} → {entity_name}"
        held_out = np.unique(task.targets.row(query))
        note = f"Held out: {', '.join(_names(graph.entities, held_out[:_LENGTH]))}"
        note += f" and {len(held_out) - _LENGTH} more" if len(held_out) > _LENGTH else ""
        best = entity[row == number]
        hits = np.isin(best, held_out).tolist()
        names = _names(graph.entities, best)
        examples.append(Example(title, note, tuple(zip(names, hits, strict=True))))
    return examples


def _drawn(count: int) -> list[int]:
    """A few queries in their order, the same in every report of the same data."""
    chosen = np.random.default_rng(0).choice(count, min(count, _EXAMPLES), replace=False)
    return sorted(chosen.tolist())


def _names(vocabulary: Vocabulary, indices: Int64) -> Sequence[str]:
    """Names where they are known, otherwise labels."""
    labels = [str(label) for label in vocabulary.take(indices).to_pylist()]
    if vocabulary.names is None:
        return labels
    names = vocabulary.names.take(indices).to_pylist()
    return [name or label for name, label in zip(names, labels, strict=True)]
