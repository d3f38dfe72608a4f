"""The contrast of similar nodes with others: InfoNCE on the vectors of a typed graph.

``-log(exp(c(a, p)) / (exp(c(a, p)) + sum over drawn n of exp(c(a, n))))``, c the cosine over the
temperature, p a node similar to the anchor a, n the nodes drawn for the step that are not. A drawn
node that is similar to the anchor, or the anchor itself, does not count for that anchor.

Source: van den Oord, Li, Vinyals 2018, "Representation learning with contrastive predictive
coding", equation 4. Deviation: the others are drawn once a step for all anchors, not taken from
the batch, so that micro-batches and processes add up to the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64, ragged_positions
from hasten.objectives.base import Batch
from hasten.objectives.batch_order import Latest
from hasten.ops.graph.csr import CSR
from hasten.ops.random import Stream, integers, key, permutation

#: anchors of a step, a similar node of each, and those that all are compared with
Nodes = tuple[Int64, Int64, Int64]
#: keep the draws of a step apart, from those of links.py also
_ANCHORS, _SIMILAR, _CONTRAST = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Similar:
    """Which nodes of one type are similar, and how they are contrasted.

    first: the type's first node; rows: for each of its N nodes the places of the similar ones;
    weight: of the loss beside that of the links; batch: anchors a step; drawn: nodes a step to
    compare them with.
    """

    first: int
    rows: CSR
    weight: float
    temperature: float
    batch: int
    drawn: int


class Contrast:
    """The anchors of each step, what they are compared with, and their loss."""

    def __init__(self, similar: Similar) -> None:
        self.similar = similar
        self.weight = similar.weight
        #: places of the nodes that are similar to others
        self.anchors = np.flatnonzero(similar.rows.lengths)
        self._order: Latest[Int64] = Latest()
        #: of each share of the step that runs
        self._drawn: Latest[dict[bytes, Nodes]] = Latest()

    def chosen(self, seed: int, epoch: int, index: int) -> Int64:
        """Which anchors a step takes, ascending: permutations of all of them in turn."""
        base, count = key(seed, Stream.PERMUTATION, epoch, _ANCHORS), len(self.anchors)
        order = self._order.of((seed, epoch), lambda: permutation(count, base).numpy())
        size = min(self.similar.batch, count)
        return np.sort(order[(index * size + np.arange(size)) % count])

    def nodes(self, batch: Batch, rows: Int64) -> Nodes:
        """The nodes that these of the step's anchors need, drawn once for those who ask."""
        shares = self._drawn.of((batch.seed, batch.epoch, batch.index), dict)
        share = rows.tobytes()
        if share not in shares:
            shares[share] = self._draw(batch, rows)
        return shares[share]

    def _draw(self, batch: Batch, rows: Int64) -> Nodes:
        place = self.anchors[rows]
        similar, first = self.similar.rows, self.similar.first
        base = key(batch.seed, Stream.POSITIVES, batch.epoch, batch.index, _SIMILAR)
        pick = integers(torch.from_numpy(similar.lengths[place]), base, torch.from_numpy(place))
        positive = similar.items[similar.offsets[place] + pick.numpy()]
        base = key(batch.seed, Stream.NEGATIVES, batch.epoch, batch.index, _CONTRAST)
        count = len(similar)
        if count <= self.similar.drawn:
            drawn = np.arange(count)
        else:
            drawn = np.unique(integers(count, base, torch.arange(self.similar.drawn)).numpy())
        return place + first, positive + first, drawn + first

    def loss(self, nodes: Nodes, anchors: Tensor, positives: Tensor, drawn: Tensor) -> Tensor:
        """The sum over the anchors, from [A, D], [A, D] and [M, D] vectors of the nodes."""
        anchor, positive, others = (F.normalize(each) for each in (anchors, positives, drawn))
        near = torch.linalg.vecdot(anchor, positive) / self.similar.temperature
        far = (anchor @ others.T).to(near.dtype) / self.similar.temperature
        far = far.masked_fill(self._alike(nodes).to(far.device), -torch.inf)
        total: Tensor = (torch.logsumexp(torch.cat([near[:, None], far], 1), 1) - near).sum()
        return total

    def _alike(self, nodes: Nodes) -> Tensor:
        """Bool [A, M] which of the drawn nodes are similar to an anchor, or itself."""
        anchor, _, others = nodes
        similar, place = self.similar.rows, anchor - self.similar.first
        places, offsets = ragged_positions(similar.offsets, place)
        answer = np.concatenate([similar.items[places], place]) + self.similar.first
        count = np.arange(len(anchor))
        row = np.concatenate([np.repeat(count, np.diff(offsets)), count])
        slot = np.minimum(np.searchsorted(others, answer), len(others) - 1)
        hit = others[slot] == answer
        alike = np.zeros((len(anchor), len(others)), bool)
        alike[row[hit], slot[hit]] = True
        return torch.from_numpy(alike)
