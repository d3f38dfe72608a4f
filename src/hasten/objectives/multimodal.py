"""The training phase of recommenders with features: BPR with a penalty of the model's own.

Every training pair comes once an epoch, with a negative among the items of the training part. The
vectors that the weights give are kept in checkpoints, so that a run scores without its features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.data.tables import Histories
from hasten.errors import DataError
from hasten.objectives.base import Batch, Encoded, Term
from hasten.objectives.pairwise import Pairs, PairwiseModel, PairwisePhase
from hasten.ops.negatives import KnownItems


class MultimodalModel(PairwiseModel, Protocol):
    """What the phase needs of a model.

    vectors: [N + U, D] of all items, then of all users, as a checkpoint gave them back; None once
    the weights have changed.
    """

    vectors: Tensor | None

    def judged(self) -> Tensor:
        """[N + U, D] what the weights give."""
        ...

    def pair_penalty(self, pairs: Pairs) -> Tensor:
        """What is penalised of these pairs, summed over them."""
        ...

    def whole_penalty(self) -> Tensor | None:
        """What is penalised whatever the batch."""
        ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """As :meth:`hasten.objectives.base.Phase.compile_with`."""
        ...


class MultimodalPhase(PairwisePhase):
    """``scale * mean softplus(s(negative) - s(positive)) + l2 * penalty``."""

    model: MultimodalModel

    def __init__(
        self,
        model: MultimodalModel,
        parameters: Sequence[nn.Parameter],
        histories: Histories,
        *,
        items: int,
        batch_size: int,
        l2: float,
        scale: float = 1.0,
    ) -> None:
        super().__init__(
            model, parameters, histories,
            items=items, batch_size=batch_size, l2=l2, sampling="interactions",
        )  # fmt: skip
        self.scale = scale
        known = self.known_items
        seen = np.unique(known.items)
        if known.lengths.max() >= len(seen):
            raise DataError(
                f"a user has all {len(seen)} items of the training part, so there are no negatives"
            )
        place = np.searchsorted(seen, known.items)
        self.known = KnownItems.build(known.rows, place, len(known), len(seen))
        self.seen = torch.from_numpy(seen)

    def pairs(self, batch: Batch, ids: Tensor) -> Pairs:
        """What the examples of these numbers are; negatives among the items of the training."""
        found = super().pairs(batch, ids)
        return Pairs(found.user, found.positive, self.seen[found.negative])

    def encode(self, batch: Batch) -> Encoded:
        self.model.vectors = None
        return super().encode(batch)

    def terms(self, encoded: Encoded, batch: Batch, rows: Tensor) -> Sequence[Term]:
        pairs = self.share(batch, rows)
        user, positive, negative = self.model.pair_vectors(encoded, pairs)
        count = batch.denominators["pairs"]
        loss = bpr_loss(user, positive, negative).sum()
        found = [Term("loss", loss, count, self.scale)]
        if self.l2:
            found.append(Term("l2", self.model.pair_penalty(pairs), count, self.l2))
        return found

    def regularisers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        penalty = self.model.whole_penalty() if self.l2 else None
        return () if penalty is None else [Term("l2", penalty, 1.0, self.l2)]

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return self.model.compile_with(wrap)

    def state(self) -> dict[str, Tensor]:
        with torch.no_grad():
            vectors = self.model.judged() if self.model.vectors is None else self.model.vectors
        return {"vectors": vectors.detach()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.model.vectors = state["vectors"].to(self._parameters[0].device)


def bpr_loss(user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """[B] ``-log σ(user · positive - user · negative)``, finite whatever the scores.

    [B, D] each, float32 or float64. The two products are subtracted before anything is taken of
    them: :func:`bpr_of_scores`.
    """
    return F.softplus((user * (negative - positive)).sum(1))


def bpr_of_scores(positive: Tensor, negative: Tensor) -> Tensor:
    """[B] the same of scores in any precision: ``softplus(negative - positive)`` in float32.

    Published implementations write ``-log(sigmoid(scores @ [[1], [-1]]))``: the same in exact
    arithmetic, but a sigmoid that is 0 has the logarithm -inf and the gradient NaN.
    """
    kind = torch.float64 if positive.dtype == torch.float64 else torch.float32
    return F.softplus(negative.to(kind) - positive.to(kind))
