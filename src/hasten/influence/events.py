"""Interactions as examples: predict a user's next item from the previous items.

A training example is one of the last ``max_length`` interactions of a user in the training part,
without the very first one, which nothing predicts. A test example is predicted from the training
and validation parts, an interaction of the validation part from the training part alone.

:class:`FactoredEvents` differentiates with respect to the output layer only, the item table that
states are scored against: the encoder before it mixes all interactions of a user, so the gradients
of its layers have no rank-1 form. Losses: ``training``, the cross-entropy over all items;
``positive``, -log σ(s) of the interaction alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.influence.example_blocks import MemorySizes
from hasten.influence.factors import (
    Arithmetic,
    Factors,
    Loss,
    RowMask,
    positive_residuals,
    scores_of,
    softmax_residuals,
)
from hasten.influence.products import paired_products
from hasten.models.sequential.base import SequentialModel
from hasten.objectives.base import Batch
from hasten.objectives.next_item import NextItemMicroBatch, NextItemPhase
from hasten.scoring import RecommenderQueries


class EventTerms:
    """The training examples of a phase, one term each: users of like lengths next to each other.

    kept: int64 the terms that are examples, None for all.
    """

    def __init__(self, phase: NextItemPhase, chosen: Int64 | None = None) -> None:
        self.phase = phase
        self.users = np.argsort(-phase.target_counts, kind="stable")
        self.offsets = np.concatenate([[0], np.cumsum(phase.target_counts[self.users])])
        self.kept = np.arange(int(self.offsets[-1])) if chosen is None else chosen
        self.terms = len(self.kept)
        weight = next(phase.module.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.terms_of = torch.arange(self.terms, device=self.device)[None]

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        """Whole users, as many as have ``rows`` interactions together, but at least one."""
        ranges, first = [], 0
        while first < len(self.users):
            last = int(np.searchsorted(self.offsets, self.offsets[first] + rows, "right")) - 1
            last = max(last, first + 1)
            start, stop = np.searchsorted(self.kept, self.offsets[[first, last]])
            if stop > start:
                ranges.append((int(start), int(stop)))
            first = last
        return ranges

    def batch(self, start: int, stop: int, seed: int = 0) -> tuple[NextItemMicroBatch, Tensor]:
        """The users of these terms, and the positions int64 [n] of the terms in their targets.

        seed: that of negatives, which are those of epoch 0.
        """
        chosen = self.kept[start:stop]
        first, last = (int(np.searchsorted(self.offsets, t, "right")) - 1 for t in chosen[[0, -1]])
        users = self.users[first : last + 1]
        batch = self.phase.build_micro_batch(Batch(torch.from_numpy(users), seed, 0, 0), users)
        return batch, torch.from_numpy(chosen - self.offsets[first]).to(self.device)

    def events(self, terms: Int64) -> tuple[Int64, Int64, Int64]:
        """User, item and position in the user's training history (from 0) of these terms."""
        chosen = self.kept[terms]
        row = np.searchsorted(self.offsets, chosen, "right") - 1
        number = self.users[row]
        user, count = self.phase.users[number], self.phase.target_counts[number]
        histories = self.phase.histories
        position = histories.offsets[user + 1] - count + (chosen - self.offsets[row])
        return user, histories.items[position], position - histories.offsets[user]


class FactoredEvents(EventTerms):
    """Training interactions and test interactions: ``targets`` after the histories of ``tests``."""

    def __init__(
        self,
        model: SequentialModel,
        phase: NextItemPhase,
        tests: RecommenderQueries,
        targets: Int64,
        loss: Loss,
        arithmetic: Arithmetic,
        chosen: Int64 | None = None,
    ) -> None:
        phase.known_items, phase.negative_count = None, 0  # neither of the two losses has negatives
        super().__init__(phase, chosen)
        self.model = model
        self.queries, self.targets, self.tests = tests, targets, len(tests)
        self.whole, self.arithmetic = loss == "training", arithmetic

    def sizes(self) -> MemorySizes:
        width = self.model.items.block(0, 1).shape[1]
        whole = len(self.model.items) if self.whole else 0
        # the encoder: attention between a user's interactions, and its hidden rows
        inner = 16 * width + 2 * self.phase.max_length
        return MemorySizes(self.terms + width + whole, inner + 2 * whole, 6)

    @torch.no_grad()
    def block(self, start: int, stop: int, mask: RowMask | None) -> Factors:
        batch, positions = self.batch(start, stop)
        states = self.model.states(batch).index_select(0, positions)
        return self._factors(states, batch.targets.index_select(0, positions))

    @torch.no_grad()
    def test(self, start: int, stop: int) -> Factors:
        rows = np.arange(start, stop)
        states = self.model.query_vectors(self.queries.take(rows))
        return self._factors(states, torch.from_numpy(self.targets[rows]).to(self.device))

    def mask(self, tests: Sequence[Factors]) -> RowMask | None:
        return None

    def norms(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        terms = torch.arange(stop - start, device=self.device)
        return terms + start, paired_products(self.block(start, stop, None), terms, terms)

    def _factors(self, states: Tensor, target: Tensor) -> Factors:
        table = self.model.items.block(0, len(self.model.items))
        dense = None
        if self.whole:
            scores = scores_of(states, table, None, self.arithmetic)
            dense, value = softmax_residuals(scores, target)
        else:
            value = positive_residuals(states, table, None, target, 1.0)
        return Factors(None, states, dense, target, value, bias=False)
