"""Events traced: a term is the prediction of a user's next item, seen by the scores' layer alone.

A training example is an event of the training part that its user's earlier ones predict (as many as
training predicts: the last ``max_length`` of each user); a test is an event after the training and
validation parts. Only the last layer, the item table as what is scored, is traced: the encoder
before it mixes all events of a user, so that the gradients of its layers have no rank-1 form.
Losses: ``training``, the cross-entropy over all items; ``positive``, -log σ(s) of the event alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.influence.examples import Sizes, Wanted
from hasten.influence.factors import Arithmetic, Factors, Loss
from hasten.influence.products import paired
from hasten.influence.residuals import positive_residuals, scores_of, softmax_residuals
from hasten.objectives.base import Batch
from hasten.objectives.next_item import NextItemBatch, NextItemPhase
from hasten.ops.table import Table
from hasten.scoring import RecommenderQueries


class SequentialModel(Protocol):
    """What is asked of the model."""

    items: Table

    def states(self, batch: NextItemBatch) -> Tensor: ...

    def query_vectors(self, queries: RecommenderQueries) -> Tensor: ...


class EventSource:
    """Training events in the order of their users, and events to be explained."""

    def __init__(
        self,
        model: SequentialModel,
        phase: NextItemPhase,
        tests: RecommenderQueries,
        targets: Int64,
        loss: Loss,
        arithmetic: Arithmetic,
        kept: Int64 | None = None,
    ) -> None:
        assert isinstance(model, nn.Module)
        self.model: SequentialModel = model
        self.phase, self.queries, self.targets = phase, tests, targets
        self.whole, self.arithmetic = loss == "training", arithmetic
        self.tests, weight = len(tests), next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        # users of like lengths together; each one's events are consecutive terms
        self.users = np.argsort(-phase.targets, kind="stable")
        self.offsets = np.concatenate([[0], np.cumsum(phase.targets[self.users])])
        self.all_terms = int(self.offsets[-1])
        self.kept = np.arange(self.all_terms) if kept is None else kept
        self.terms = len(self.kept)
        self.members = torch.arange(self.terms, device=self.device)[None]

    def sizes(self) -> Sizes:
        width = self.model.items.block(0, 1).shape[1]
        whole = len(self.model.items) if self.whole else 0
        # the encoder: attention of a user's events with each other, and its hidden rows
        inner = 16 * width + 2 * self.phase.max_length
        return Sizes(self.terms + width + whole, inner + 2 * whole, 6)

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        """Whole users, as many as have ``rows`` events together, but at least one."""
        found, first = [], 0
        while first < len(self.users):
            last = int(np.searchsorted(self.offsets, self.offsets[first] + rows, "right")) - 1
            last = max(last, first + 1)
            start, stop = np.searchsorted(self.kept, self.offsets[[first, last]])
            if stop > start:
                found.append((int(start), int(stop)))
            first = last
        return found

    @torch.no_grad()
    def block(self, start: int, stop: int, wanted: Wanted | None) -> Factors:
        chosen = self.kept[start:stop]
        first, last = (int(np.searchsorted(self.offsets, t, "right")) - 1 for t in chosen[[0, -1]])
        users = self.users[first : last + 1]
        batch = self.phase.lay_out(Batch(torch.from_numpy(users), 0, 0, 0), users)
        of = torch.from_numpy(chosen - self.offsets[first]).to(self.device)
        states = self.model.states(batch).index_select(0, of)
        return self._factors(states, batch.targets.index_select(0, of))

    @torch.no_grad()
    def test(self, start: int, stop: int) -> Factors:
        some = np.arange(start, stop)
        states = self.model.query_vectors(self.queries.take(some))
        return self._factors(states, torch.from_numpy(self.targets[some]).to(self.device))

    def wanted(self, test: Factors) -> Wanted | None:
        return None

    def own(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        terms = torch.arange(stop - start, device=self.device)
        return terms + start, paired(self.block(start, stop, None), terms, terms)

    def _factors(self, states: Tensor, target: Tensor) -> Factors:
        table = self.model.items.block(0, len(self.model.items))
        dense = None
        if self.whole:
            scores = scores_of(states, table, None, self.arithmetic)
            dense, value = softmax_residuals(scores, target)
        else:
            value = positive_residuals(states, table, None, target, 1.0)
        return Factors(None, states, dense, target, value, bias=False)

    def events(self, terms: Int64) -> tuple[Int64, Int64, Int64]:
        """User, item and place in the user's training history (from 0) of these terms."""
        all_terms = self.kept[terms]
        row = np.searchsorted(self.offsets, all_terms, "right") - 1
        number = self.users[row]
        user, count = self.phase.users[number], self.phase.targets[number]
        histories = self.phase.histories
        last = histories.offsets[user + 1]
        place = last - count + (all_terms - self.offsets[row])
        return user, histories.items[place], place - histories.offsets[user]


def without_draws(phase: NextItemPhase) -> NextItemPhase:
    """The phase, no longer drawing negatives: none of the losses traced here has any."""
    phase.known = None
    return phase
