"""Contrastive loss of similar nodes of a typed graph (InfoNCE).

``-log(exp(c(a, p)) / (exp(c(a, p)) + sum over n of exp(c(a, n))))`` with the cosine c divided by
the temperature, p a node similar to the anchor a, and n the negatives of the step. A negative that
is similar to the anchor, or is the anchor, is ignored for that anchor.

Source: van den Oord, Li, Vinyals 2018, "Representation learning with contrastive predictive
coding", equation 4. Deviation: all anchors share negatives that are sampled once per step, instead
of in-batch negatives, so that micro-batches and processes add up to the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, pair_mask, ragged_positions
from hasten.objectives.base import Batch
from hasten.ops.dense.product import padded_rows
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.csr import CSR
from hasten.ops.permutations import LastValueCache, cached_permutation
from hasten.ops.random import Stream, integers, key

#: anchors of a step, a similar node of each, and the negatives of all
Nodes = tuple[Int64, Int64, Int64]
#: independent random numbers, also of those in link_sampling.py
_ANCHORS, _SIMILAR, _CONTRAST = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Similar:
    """Which nodes of a type are similar, and how they are contrasted.

    first: first node of the type. rows: for each of its N nodes, the indices of similar nodes.
    weight: of this loss relative to the link loss. batch: anchors per step. negatives: nodes per
    step to compare them with.
    """

    first: int
    rows: CSR
    weight: float
    temperature: float
    batch: int
    negatives: int


class Contrast:
    """The anchors of each step, their similar nodes and negatives, and their loss."""

    def __init__(self, similar: Similar) -> None:
        self.similar = similar
        #: indices of the nodes that have similar nodes
        self.anchors = np.flatnonzero(similar.rows.lengths)
        self._order: LastValueCache[Tensor] = LastValueCache()
        #: by micro-batch of the current step
        self._nodes: LastValueCache[dict[bytes, Nodes]] = LastValueCache()

    def sample(self, seed: int, epoch: int, index: int) -> Int64:
        """The anchors of a step, ascending: consecutive parts of the epoch's permutation."""
        count = len(self.anchors)
        order = cached_permutation(self._order, count, seed, epoch, _ANCHORS).numpy()
        size = min(self.similar.batch, count)
        return np.sort(order[(index * size + np.arange(size)) % count])

    def nodes(self, batch: Batch, ids: Int64) -> Nodes:
        """The nodes that these anchors of the step need."""
        cached, ids_key = self._nodes.get(batch.key, dict), ids.tobytes()
        if ids_key not in cached:
            cached[ids_key] = self._sample_nodes(batch, ids)
        return cached[ids_key]

    def _sample_nodes(self, batch: Batch, ids: Int64) -> Nodes:
        anchor = self.anchors[ids]
        similar, first = self.similar.rows, self.similar.first
        base = key(batch.seed, Stream.POSITIVES, batch.epoch, batch.index, _SIMILAR)
        pick = integers(torch.from_numpy(similar.lengths[anchor]), base, torch.from_numpy(anchor))
        positive = similar.items[similar.offsets[anchor] + pick.numpy()]
        base = key(batch.seed, Stream.NEGATIVES, batch.epoch, batch.index, _CONTRAST)
        count = len(similar)
        if count <= self.similar.negatives:
            negative = np.arange(count)
        else:
            sampled = integers(count, base, torch.arange(self.similar.negatives))
            negative = np.unique(sampled.numpy())
        return anchor + first, positive + first, negative + first

    def padded(self, nodes: Nodes) -> Nodes:
        """With as many negatives in every step: further ones repeat the last, and are ignored."""
        anchor, positive, negative = nodes
        most = min(self.similar.negatives, len(self.similar.rows))
        return anchor, positive, np.pad(negative, (0, most - len(negative)), "edge")

    def loss(self, ignored: Tensor, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """The sum over the anchors, from [A, D], [A, D] and [M, D] vectors of norm 1."""
        near = torch.linalg.vecdot(anchor, positive) / self.similar.temperature
        left, right = (padded_rows(x.to(autocast_dtype(x))) for x in (anchor, negative))
        far = (left @ right.T)[: len(anchor), : len(negative)]
        far = far.to(near.dtype) / self.similar.temperature
        far = far.masked_fill(ignored, -torch.inf)
        total: Tensor = (torch.logsumexp(torch.cat([near[:, None], far], 1), 1) - near).sum()
        return total

    def ignored(self, nodes: Nodes) -> Tensor:
        """Bool [A, M]: whether a negative is similar to the anchor, or is the anchor."""
        anchor, _, negative = nodes
        similar, index = self.similar.rows, anchor - self.similar.first
        positions, offsets = ragged_positions(similar.offsets, index)
        answer = np.concatenate([similar.items[positions], index]) + self.similar.first
        count = np.arange(len(anchor))
        row = np.concatenate([np.repeat(count, np.diff(offsets)), count])
        is_repeated = np.diff(negative, prepend=-1) == 0
        return torch.from_numpy(pair_mask(row, answer, len(anchor), negative) | is_repeated)
