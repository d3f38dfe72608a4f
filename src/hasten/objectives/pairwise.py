"""The training phase of recommenders of users and items: pairwise ranking (BPR).

An example is a user with an item of theirs and one of the others (Rendle et al. 2009):
``softplus(s(negative) - s(positive))``, and the L2 norm of the three vectors. What an example is
follows from its number in the epoch alone, so batches are the same on every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.data.tables import Histories
from hasten.errors import DataError
from hasten.objectives.base import Batch, Encoded, SimplePhase, Term
from hasten.objectives.batch_order import Latest, Turns
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, integers, key

Sampling = Literal["users", "interactions"]


@dataclass(frozen=True)
class Pairs:
    """Users with one item of theirs and one that is not: int64 [B] each, on the host."""

    user: Tensor
    positive: Tensor
    negative: Tensor


class PairwiseModel(Protocol):
    """What the phase needs of a model."""

    def encode_pairs(self, pairs: Pairs, draw: int) -> Encoded:
        """What a step computes once for all the pairs of its batch; draw: the key of dropout."""
        ...

    def pair_vectors(self, encoded: Encoded, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """[B, D] of users, positives and negatives, float32."""
        ...

    def margins(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """[B] ``s(negative) - s(positive)``, from the vectors of :meth:`pair_vectors`."""
        ...

    def penalized(self, encoded: Encoded, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor] | None:
        """[B, D] whose squared norms the L2 term sums; None: the vectors of the pairs."""
        ...


class InnerProductPairs:
    """Defaults for a model without a graph whose score is ``user · item``."""

    def encode_pairs(self, pairs: Pairs, draw: int) -> Encoded:
        return ()

    def margins(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return (user * (negative - positive)).sum(1)

    def penalized(self, encoded: Encoded, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor] | None:
        return None


class PairwisePhase(SimplePhase):
    """As many examples an epoch as there are training pairs.

    sampling: ``users`` draws users alike (without repetition until all were drawn) and an item of
    each, as the authors of KGAT do; ``interactions`` takes every pair once.
    """

    name = "pairwise"

    def __init__(
        self,
        model: PairwiseModel,
        parameters: Sequence[nn.Parameter],
        histories: Histories,
        *,
        items: int,
        batch_size: int,
        l2: float,
        sampling: Sampling,
    ) -> None:
        self.model, self._parameters = model, list(parameters)
        self.known_items = known = CSR.of(histories).distinct()
        self.batch_size, self.l2, self.sampling = batch_size, l2, sampling
        if not len(known.items):
            raise DataError("there is no training event to learn from")
        if known.lengths.max() >= items:
            raise DataError(
                f"a user has all {items} items in training, so there are no negatives to draw"
            )
        self.known = KnownItems.build(known.rows, known.items, len(known), items)
        self.offsets = torch.from_numpy(known.offsets)
        self.items, self.users = torch.from_numpy(known.items), torch.from_numpy(known.rows)
        self.active = torch.from_numpy(np.flatnonzero(known.lengths > 0))
        self._drawn: Latest[Pairs] = Latest()
        self._turns = Turns(len(self.items if sampling == "interactions" else self.active))

    def steps(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        begin = index * self.batch_size
        ids = torch.arange(begin, min(begin + self.batch_size, len(self.items)))
        return Batch(ids, seed, epoch, index, {"pairs": float(len(ids))})

    def pairs(self, batch: Batch, ids: Tensor) -> Pairs:
        """What the examples of these numbers are."""
        seed, epoch = batch.seed, batch.epoch
        if self.sampling == "interactions":
            chosen = self._turns.at(seed, epoch, ids)
            user, positive = self.users[chosen], self.items[chosen]
        else:
            user = self.active[self._turns.at(seed, epoch, ids)]
            begin, stop = self.offsets[user], self.offsets[user + 1]
            positive = self.items[
                begin + integers(stop - begin, key(seed, Stream.POSITIVES, epoch), ids)
            ]
        base = key(seed, Stream.NEGATIVES, epoch)
        return Pairs(user, positive, negatives(self.known, user, base, ids))

    def share(self, batch: Batch, rows: Tensor) -> Pairs:
        """The pairs of a share of the batch, of one drawing a step for all who ask."""
        name = (batch.seed, batch.epoch, batch.index)
        whole = self._drawn.of(name, lambda: self.pairs(batch, batch.ids))
        if rows is batch.ids:
            return whole
        place = rows - batch.ids[0]  # the numbers of a batch follow each other
        return Pairs(whole.user[place], whole.positive[place], whole.negative[place])

    def encode(self, batch: Batch) -> Encoded:
        draw = key(batch.seed, Stream.DROPOUT, batch.epoch, batch.index)
        return self.model.encode_pairs(self.share(batch, batch.ids), draw)

    def terms(self, encoded: Encoded, batch: Batch, rows: Tensor) -> Sequence[Term]:
        pairs = self.share(batch, rows)
        user, positive, negative = self.model.pair_vectors(encoded, pairs)
        margin = self.model.margins(user, positive, negative)
        penalized = self.model.penalized(encoded, pairs)
        if penalized is not None:
            user, positive, negative = penalized
        norms = (user.square() + positive.square() + negative.square()).sum() / 2
        count = batch.denominators["pairs"]
        return [
            Term("loss", F.softplus(margin).sum(), count),
            Term("l2", norms, count, self.l2),
        ]

    def parameters(self) -> Sequence[nn.Parameter]:
        return self._parameters

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)
