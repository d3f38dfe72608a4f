"""Training phases of multimodal recommenders: BPR with a regularizer that the model defines.

Every training pair is used once per epoch, with a negative among the items of the training part.
Checkpoints contain the vectors of all users and items, so a run scores without its item features.
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
from hasten.objectives.pairwise import PairwiseExamples, PairwiseModel, PairwisePhase
from hasten.ops.negatives import KnownItems


class FeatureModel(PairwiseModel, Protocol):
    """What the phases need from a model.

    vectors: [N + U, D] of all items, then of all users, loaded from a checkpoint; None once the
    weights have changed.
    """

    vectors: Tensor | None

    def all_vectors(self) -> Tensor:
        """[N + U, D] computed from the weights."""
        ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """As :meth:`hasten.objectives.base.Phase.compile_with`."""
        ...


class MultimodalModel(FeatureModel, Protocol):
    """What :class:`MultimodalPhase` needs from a model."""

    def pair_penalty(self, pairs: PairwiseExamples) -> Tensor:
        """The regularizer of these pairs, summed over them."""
        ...

    def global_penalty(self) -> Tensor:
        """The regularizer that does not depend on the batch."""
        ...


class FeaturePhase(PairwisePhase):
    """Every training pair once per epoch, with a negative among the items of the training part."""

    model: FeatureModel

    def __init__(
        self,
        model: FeatureModel,
        parameters: Sequence[nn.Parameter],
        histories: Histories,
        *,
        items: int,
        batch_size: int,
        l2: float = 0.0,
    ) -> None:
        super().__init__(
            model, parameters, histories,
            items=items, batch_size=batch_size, l2=l2, sampling="interactions",
        )  # fmt: skip
        trained = self.training_items
        seen = np.unique(trained.items)
        if trained.lengths.max() >= len(seen):
            raise DataError(
                f"a user has all {len(seen)} items of the training part, so there are no negatives"
            )
        index = np.searchsorted(seen, trained.items)
        self.known_items = KnownItems.build(trained.rows, index, len(trained), len(seen))
        self.seen = torch.from_numpy(seen)

    def sample(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        sampled = super().sample(batch, ids)
        return PairwiseExamples(sampled.user, sampled.positive, self.seen[sampled.negative])

    def encode(self, batch: Batch) -> Encoded:
        self.model.vectors = None
        return super().encode(batch)

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return self.model.compile_with(wrap)

    def state(self) -> dict[str, Tensor]:
        with torch.no_grad():
            vectors = self.model.all_vectors() if self.model.vectors is None else self.model.vectors
        return {"vectors": vectors.detach()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.model.vectors = state["vectors"].to(self._parameters[0].device)


class MultimodalPhase(FeaturePhase):
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
        super().__init__(model, parameters, histories, items=items, batch_size=batch_size, l2=l2)
        self.scale = scale

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        pairs: PairwiseExamples = self.on_device(batch, ids)
        user, positive, negative = self.model.pair_vectors(encoded, pairs)
        count = batch.denominators["examples"]
        loss = bpr_loss(user, positive, negative).sum()
        terms = [Term("loss", loss, count, self.scale)]
        if self.l2:
            terms.append(Term("l2", self.model.pair_penalty(pairs), count, self.l2))
        return terms

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        return [Term("l2", self.model.global_penalty(), 1.0, self.l2)] if self.l2 else ()


def bpr_loss(user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """[B] ``-log σ(user · positive - user · negative)``, finite for all scores.

    [B, D] each, float32 or float64.
    """
    return F.softplus((user * (negative - positive)).sum(1))
