"""Training phase of collaborative models: Bayesian personalized ranking (BPR).

An example is a user with one of their items and a sampled other item (Rendle et al. 2009). Its loss
is ``softplus(s(negative) - s(positive))``, or another one of the model (``pair_loss``), plus
``l2 / 2`` times the squared L2 norms of the three vectors, or of others that the model names
(``penalized``). An example depends only on its number in the epoch, so batches are the same in
every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.data.tables import Histories
from hasten.errors import DataError
from hasten.objectives.base import Batch, Encoded, ExampleBatches, Term
from hasten.objectives.shared_negatives import SharedItems, shared_items
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.permutations import LastValueCache, PermutationSampler
from hasten.ops.random import Stream, integers, key

Sampling = Literal["users", "interactions"]


@dataclass(frozen=True)
class PairwiseExamples:
    """Interactions with a sampled negative each: users, their items, other items; int64 [B] each.

    nodes: int64 [3B], the result of :meth:`PairwiseModel.pair_nodes` if it was already computed on
    the host, else None. shared: the negatives of the whole batch, if the model shares them.
    """

    user: Tensor
    positive: Tensor
    negative: Tensor
    nodes: Tensor | None = None
    shared: SharedItems | None = None


#: the earlier name, for models outside of this package
Pairs = PairwiseExamples


class PairwiseModel(Protocol):
    """What the phase needs from a model."""

    def pair_nodes(self, pairs: PairwiseExamples) -> Tensor:
        """int64 [3B]: the users, the positives and the negatives, as rows of the model's tables."""
        ...

    def pair_inputs(self, pairs: PairwiseExamples) -> Any:
        """The inputs of :meth:`encode_pairs` for all pairs of a batch, prepared on the host."""
        ...

    def encode_pairs(self, inputs: Any, seed: int | None) -> Encoded:
        """What a step computes once for all pairs of its batch.

        seed: the seed of dropout; None: the step has already seeded torch's generator.
        """
        ...

    def fix_shapes(self) -> str | None:
        """From now on, let :meth:`pair_inputs` return the same shapes for all batches of one size.

        CUDA graphs need this. Returns None, or the reason why it is not possible.
        """
        ...

    def pair_vectors(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, D] of users, positives and negatives, float32."""
        ...

    @property
    def shares_negatives(self) -> bool:
        """Whether :meth:`pair_loss` reads ``pairs.shared``, the negatives of the whole batch."""
        ...

    def pair_loss(
        self, encoded: Encoded, pairs: PairwiseExamples, vectors: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """The sum of the losses of the pairs. vectors: those of :meth:`pair_vectors`."""
        ...

    def penalized(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """[B, D] whose squared norms the L2 term sums; None: the vectors of the pairs."""
        ...


class InnerProductDefaults:
    """Defaults for models whose score is ``user · item``.

    A model that propagates over a graph overrides :meth:`pair_inputs` and :meth:`encode_pairs`.
    """

    #: whether :meth:`distinct` pads its result to a length that depends only on the batch size
    fixed = False

    @property
    def first_user(self) -> int:
        """The row of the first user in the model's tables."""
        return 0

    def fix_shapes(self) -> str | None:
        return "each batch reads a different number of rows of the graph"

    def distinct(self, nodes: Tensor) -> Tensor:
        """The distinct nodes, ascending, on the host.

        If shapes are fixed, the last one is repeated until there are as many as were given. A
        lookup finds the first of equal nodes (``CollaborativeModel.take``), so the vectors of the
        repetitions are computed, but never read.
        """
        found: Tensor = torch.unique(nodes)
        if not self.fixed:
            return found
        return torch.cat([found, found[-1:].expand(len(nodes) - len(found))])

    def pair_nodes(self, pairs: PairwiseExamples) -> Tensor:
        if pairs.nodes is not None:
            return pairs.nodes
        return torch.cat([pairs.user + self.first_user, pairs.positive, pairs.negative])

    def pair_inputs(self, pairs: PairwiseExamples) -> Any:
        return ()

    def encode_pairs(self, inputs: Any, seed: int | None) -> Encoded:
        return ()

    def margins(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """[B] ``s(negative) - s(positive)``: below 0 if the pair is ranked correctly."""
        return (user * (negative - positive)).sum(1)

    @property
    def shares_negatives(self) -> bool:
        return False

    def pair_loss(
        self, encoded: Encoded, pairs: PairwiseExamples, vectors: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        return F.softplus(self.margins(*vectors)).sum()

    def penalized(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        return None


class PairwisePhase(ExampleBatches):
    """The BPR phase: as many examples per epoch as there are training pairs.

    sampling: ``interactions`` takes every pair once per epoch. ``users`` samples users uniformly,
    without repetition until each was sampled, and an item of each (the code of KGAT's authors).

    Raises:
        DataError: there are no training pairs, or a user has no negative items.
    """

    name = "pairwise"
    no_capture_reason: str | None = "each batch reads a different number of rows of the graph"

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
        self.training_items = trained = CSR.of(histories).distinct()
        # the id of an example is its position in the epoch; the sampler below permutes them
        super().__init__(len(trained.items), batch_size, shuffle=False)
        self.model, self._parameters = model, list(parameters)
        #: whether a step encodes all pairs of its batch together, in every process
        self.encodes_pairs = _overrides(model, "pair_inputs") or _overrides(model, "encode_pairs")
        # without encode_pairs, a step reads only the rows of its pairs, and their number is fixed
        if not _overrides(model, "encode_pairs"):
            self.no_capture_reason = None
        self.l2, self.sampling = l2, sampling
        if not len(trained.items):
            raise DataError("there are no training interactions")
        if trained.lengths.max() >= items:
            raise DataError(
                f"a user has all {items} items in training, so there are no negatives to sample"
            )
        self.known_items = KnownItems.build(trained.rows, trained.items, len(trained), items)
        self.offsets = torch.from_numpy(trained.offsets)
        #: int64, the item and the user of each training pair
        self.pair_items = torch.from_numpy(trained.items)
        self.pair_users = torch.from_numpy(trained.rows)
        self.users_with_items = torch.from_numpy(np.flatnonzero(trained.lengths > 0))
        self._pairs: LastValueCache[PairwiseExamples] = LastValueCache()
        examples = self.pair_items if sampling == "interactions" else self.users_with_items
        self._sampler = PermutationSampler(len(examples))

    def sample(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        """The pairs of these examples of the epoch."""
        seed, epoch = batch.seed, batch.epoch
        if self.sampling == "interactions":
            chosen = self._sampler.at(seed, epoch, ids)
            user, positive = self.pair_users[chosen], self.pair_items[chosen]
        else:
            user = self.users_with_items[self._sampler.at(seed, epoch, ids)]
            begin, stop = self.offsets[user], self.offsets[user + 1]
            positive = self.pair_items[
                begin + integers(stop - begin, key(seed, Stream.POSITIVES, epoch), ids)
            ]
        base = key(seed, Stream.NEGATIVES, epoch)
        return PairwiseExamples(user, positive, negatives(self.known_items, user, base, ids))

    def pairs(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        """The pairs of these examples, on the host.

        The whole batch is sampled once, and micro-batches are slices of it. One case differs: if
        several processes divide the batch and no step encodes all of its pairs together, a process
        samples only its own share.
        """
        all_ids, divided = ids is batch.ids, batch.local_micro_batches is not None
        if divided and not all_ids and not self.encodes_pairs:
            return self.sample(batch, ids)
        whole = self._pairs.get(batch.key, lambda: self.sample(batch, batch.ids))
        if all_ids:
            return whole
        local = ids - batch.ids[0]  # the ids of a batch are consecutive
        return PairwiseExamples(whole.user[local], whole.positive[local], whole.negative[local])

    def fix_shapes(self) -> None:
        if self.no_capture_reason is not None:
            self.no_capture_reason = self.model.fix_shapes()
            self.one_seed_per_step = True  # the training step then seeds dropout, not encode()

    def encode_inputs(self, batch: Batch) -> Any:
        return self.model.pair_inputs(self.pairs(batch, batch.ids)) if self.encodes_pairs else ()

    def term_inputs(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        pairs = self.pairs(batch, ids)
        shared = None
        if self.model.shares_negatives:
            negatives = self.pairs(batch, batch.ids).negative.numpy()
            shared = shared_items(negatives, pairs.positive.numpy(), self.known_items.count)
        return replace(pairs, nodes=self.model.pair_nodes(pairs), shared=shared)

    def encode(self, batch: Batch) -> Encoded:
        seed = None if self.one_seed_per_step else self.dropout_seed(batch)
        return self.model.encode_pairs(self.on_device(batch), seed)

    @staticmethod
    def dropout_seed(batch: Batch) -> int:
        """The seed of dropout in :meth:`encode`, if the training step does not seed it."""
        return key(batch.seed, Stream.DROPOUT, batch.epoch, batch.index)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        pairs: PairwiseExamples = self.on_device(batch, ids)
        vectors = self.model.pair_vectors(encoded, pairs)
        loss = self.model.pair_loss(encoded, pairs, vectors)
        user, positive, negative = self.model.penalized(encoded, pairs) or vectors
        norms = (user.square() + positive.square() + negative.square()).sum() / 2
        count = batch.denominators["examples"]
        return [
            Term("loss", loss, count),
            Term("l2", norms, count, self.l2),
        ]

    def parameters(self) -> Sequence[nn.Parameter]:
        return self._parameters


def _overrides(model: PairwiseModel, method: str) -> bool:
    default: object = getattr(InnerProductDefaults, method)
    return getattr(type(model), method) is not default
