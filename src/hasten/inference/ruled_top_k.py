"""The top k items of each user under business rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.tables import Vocabulary
from hasten.errors import UsageError
from hasten.evaluation.ranker import scoring
from hasten.evaluation.top_k import top_k
from hasten.inference.labels import indices_of
from hasten.inference.rules import Rules
from hasten.models.interface import Model
from hasten.ops.graph.csr import CSR
from hasten.scoring import FactorScorer, RecommenderQueries

#: items, in multiples of k, among which a list is chosen; more where caps leave too few
POOL, _MORE = 5, 4
Found = tuple[Int64, Int64, Int64, NDArray[np.float32]]


class RuledTopK:
    """:func:`top_k` under rules. users: labels of the queries, as texts.

    unknown: items of the rules that the run does not know, by where they are named.
    """

    def __init__(
        self,
        model: Model,
        queries: RecommenderQueries,
        users: Sequence[str],
        items: Vocabulary,
        rules: Rules,
    ) -> None:
        self.model, self.queries, self.users = model, queries, users
        self.items, self.rules = items, rules
        self.unknown: dict[str, int] = {}
        self.category = self._categories()
        self.vectors = self._vectors() if rules.diversity else None

    def __call__(self, k: int, seen: CSR | None, allowed: Int64 | None) -> Found:
        """As of :func:`top_k`; seen, allowed: as there."""
        excluded = self._excluded(seen)
        parts = [
            self._of_group(rows, k, excluded, only)
            for rows, only in self._groups(allowed)
            if len(rows) and (only is None or len(only))
        ]
        none = np.zeros(0, np.int64)
        parts.append((none, none, none, np.zeros(0, np.float32)))
        query, item, place, score = (np.concatenate(c) for c in zip(*parts, strict=True))
        order = np.lexsort((place, query))
        return query[order], item[order], place[order], score[order]

    def _index(self, labels: Sequence[str], kind: str) -> Int64:
        return indices_of(self.items, labels, kind, "", self.unknown)

    def _excluded(self, seen: CSR | None) -> CSR | None:
        """The items that each query must not get."""
        lists = [self.rules.exclude.get(user, ()) for user in self.users]
        if not any(lists):
            return seen
        flat = self._index([item for each in lists for item in each], "excluded item")
        rows = np.repeat(np.arange(len(lists), dtype=np.int64), [len(each) for each in lists])
        rows, flat = rows[flat >= 0], flat[flat >= 0]
        if seen is not None:
            rows, flat = np.append(rows, seen.rows), np.append(flat, seen.items)
        order = np.argsort(rows, kind="stable")
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=len(lists)), out=offsets[1:])
        return CSR(offsets, flat[order])

    def _groups(self, allowed: Int64 | None) -> Iterator[tuple[Int64, Int64 | None]]:
        """The queries of each group, and the items that they may get."""
        group = np.array([self.rules.groups.get(user, "") for user in self.users], object)
        yield np.flatnonzero(group == ""), allowed
        names = list(self.rules.group_items)
        labels = [item for name in names for item in self.rules.group_items[name]]
        index = self._index(labels, "item of a group") if labels else np.zeros(0, np.int64)
        ends = np.cumsum([len(self.rules.group_items[name]) for name in names]).astype(np.int64)
        for name, indices in zip(names, np.split(index, ends[:-1]), strict=bool(names)):
            only = np.unique(indices[indices >= 0])
            only = only if allowed is None else np.intersect1d(only, allowed)
            yield np.flatnonzero(group == name), only

    def _of_group(self, rows: Int64, k: int, excluded: CSR | None, only: Int64 | None) -> Found:
        """The lists of some queries, with their numbers among all."""
        queries = self.queries.take(rows)
        hidden = None if excluded is None else excluded.take(rows)
        count, chooses = len(self.items), self.rules.cap is not None or self.vectors is not None
        pool = min(count, k * POOL if chooses else k)
        while True:
            query, item, place, score = top_k(self.model, queries, count, pool, hidden, only)
            if not chooses:
                return rows[query], item, place, score
            ends = np.searchsorted(query, np.arange(len(rows) + 1))
            chosen: list[Int64] = []
            short = False
            for begin, end in pairwise(ends.tolist()):
                selected = begin + self._choose(item[begin:end], score[begin:end], k)
                short |= len(selected) < k and end - begin == pool < count
                chosen.append(selected)
            if not short:
                flat = np.concatenate([np.zeros(0, np.int64), *chosen])
                places = [np.arange(len(each), dtype=np.int64) for each in chosen]
                place = np.concatenate([np.zeros(0, np.int64), *places])
                return rows[query[flat]], item[flat], place, score[flat]
            pool = min(count, pool * _MORE)

    def _choose(self, item: Int64, score: NDArray[np.float32], k: int) -> Int64:
        """Positions of at most k items: among the best 5 k, and more if caps leave too few."""
        most = k * POOL
        while True:
            chosen = self._choose_among(item[:most], score[:most], k)
            if len(chosen) == k or most >= len(item):
                return chosen
            most *= _MORE

    def _choose_among(self, item: Int64, score: NDArray[np.float32], k: int) -> Int64:
        """One item after the other: relevance less similarity, until categories are full."""
        rules = self.rules
        chosen: list[int] = []
        spread = float(np.ptp(score)) if len(score) else 0.0
        relevance = (score - score.min(initial=np.inf)) / (spread or 1.0)
        value = (1 - rules.diversity) * relevance.astype(np.float64)
        free, nearest = np.ones(len(item), bool), np.full(len(item), -np.inf)
        while len(chosen) < k and free.any():
            similar = 0.0 if self.vectors is None or not chosen else rules.diversity * nearest
            best = int(np.argmax(np.where(free, value - similar, -np.inf)))
            chosen.append(best)
            free[best] = False
            kind = self.category[item[best]]
            if rules.cap is not None and kind >= 0:
                same = self.category[item] == kind
                if int(same[chosen].sum()) == rules.cap:
                    free &= ~same
            if self.vectors is not None:
                nearest = np.maximum(nearest, self.vectors[item] @ self.vectors[item[best]])
        return np.array(chosen, np.int64)

    def _categories(self) -> Int64:
        """[N] the number of the category of each item; -1: none."""
        categories = np.full(len(self.items), -1, np.int64)
        if self.rules.categories:
            index = self._index(list(self.rules.categories), "item with a category")
            _, code = np.unique(list(self.rules.categories.values()), return_inverse=True)
            categories[index[index >= 0]] = code[index >= 0]
        return categories

    def _vectors(self) -> NDArray[np.float32]:
        """[N, D] item vectors of length 1. Raises UsageError if the model has none."""
        with scoring(self.model):
            scorer = self.model.scorer(self.queries.take(np.zeros(1, np.int64)))
            if not isinstance(scorer, FactorScorer):
                raise UsageError(
                    f"diversity needs item vectors, and {self.model.name} has none: its score is "
                    "not the product of a user's and an item's vector"
                )
            table = scorer.catalog.table
            vectors = table.block(0, len(table)).detach().float().cpu().numpy()
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
        return unit
