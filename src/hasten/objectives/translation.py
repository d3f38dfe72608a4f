"""The training phase of a knowledge graph by translation in relation spaces (TransR; Lin 2015).

An example is an edge (h, r, t) and a node t' that h does not reach by r:
``softplus(g(h, r, t) - g(h, r, t'))``, ``g = ||e_h W_r + e_r - e_t W_r||^2``. Heads are drawn
alike, then one of their edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hasten.objectives.base import Batch, Encoded, SimplePhase, TableRows, Term
from hasten.objectives.batch_order import Latest, Turns
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, integers, key

#: keeps its draws apart from those of the pairs
_DRAWS = 1


@dataclass(frozen=True)
class TranslationBatch:
    """Edges in the order of their relations, each with another node: int64 [B]; on the host.

    relation: int64 [B]; nodes: int64 [3B], head, tail and other of one edge after the other;
    sizes: edges of each relation; order: int64 [B], the example (from 0) at each place.
    """

    relation: Tensor
    nodes: Tensor
    sizes: list[int]
    order: Tensor

    def part(self, places: Tensor) -> TranslationBatch:
        """The edges at these places, ascending."""
        relation = self.relation[places]
        sizes = torch.bincount(relation, minlength=len(self.sizes)).tolist()
        return TranslationBatch(relation, _edges(self.nodes, places), sizes, self.order[places])


class TranslationModel(Protocol):
    """What the phase needs of a model."""

    def translation(
        self, rows: Tensor, place: Tensor, batch: TranslationBatch
    ) -> tuple[Tensor, Tensor]:
        """The sum of the loss and the norms; place: int64 [3B], where in the rows nodes are."""
        ...

    def refresh(self) -> None:
        """Attention from the weights as they are."""
        ...

    @property
    def attention(self) -> Tensor: ...

    def set_attention(self, values: Tensor) -> None: ...


class TranslationPhase(SimplePhase):
    """As many examples an epoch as there are edges; after them the attention is refreshed."""

    name = "translation"

    def __init__(
        self,
        model: TranslationModel,
        parameters: Sequence[nn.Parameter],
        graph: CollaborativeGraph,
        *,
        batch_size: int,
        l2: float,
    ) -> None:
        self.model, self._parameters = model, list(parameters)
        self.batch_size, self.l2, self.relations = batch_size, l2, graph.relations
        question = graph.questions
        self.known = KnownItems.build(question, graph.tail, int(question[-1]) + 1, graph.nodes)
        self.question = torch.from_numpy(question.astype(np.int32))
        self.relation = torch.from_numpy(graph.relation.astype(np.int32))
        self.tail = torch.from_numpy(graph.tail.astype(np.int32))
        self.heads, first = (torch.from_numpy(a) for a in np.unique(graph.head, return_index=True))
        self.offsets = torch.cat([first, torch.tensor([len(graph)])])
        self.count, self.nodes = len(graph), graph.nodes
        self.table = TableRows(self._parameters[0], self.read, 3 * min(batch_size, self.count))
        self._turns = Turns(len(self.heads), _DRAWS)
        self._drawn: Latest[tuple[TranslationBatch, Tensor, Tensor]] = Latest()

    def steps(self) -> int:
        return -(-self.count // self.batch_size)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        begin = index * self.batch_size
        ids = torch.arange(begin, min(begin + self.batch_size, self.count))
        return Batch(ids, seed, epoch, index, {"edges": float(len(ids))})

    def read(self, batch: Batch) -> Tensor:
        """int64 [S] the nodes that a batch reads, ascending."""
        return self._whole(batch)[1]

    def _whole(self, of: Batch) -> tuple[TranslationBatch, Tensor, Tensor]:
        """All examples of a batch, the nodes they read, and where their nodes are among these.

        Drawn once for those who ask in turn.
        """

        def draw() -> tuple[TranslationBatch, Tensor, Tensor]:
            drawn = self.batch(of, of.ids)
            return drawn, *torch.unique(drawn.nodes, return_inverse=True)

        return self._drawn.of((of.seed, of.epoch, of.index), draw)

    def _share(self, of: Batch, ids: Tensor) -> tuple[TranslationBatch, Tensor]:
        """The examples of these numbers, and where their nodes are among those of the batch."""
        drawn, _, place = self._whole(of)
        if ids is of.ids:
            return drawn, place
        at = torch.empty_like(drawn.order)
        at[drawn.order] = torch.arange(len(at))
        own = at[ids - of.ids[0]].sort().values  # the numbers of a batch follow each other
        return drawn.part(own), _edges(place, own)

    def batch(self, of: Batch, ids: Tensor) -> TranslationBatch:
        """What the examples of these numbers are, in the order of their relations."""
        seed, epoch = of.seed, of.epoch
        place = self._turns.at(seed, epoch, ids)
        begin = self.offsets[place]
        draw = key(seed, Stream.POSITIVES, epoch, _DRAWS)
        edge = begin + integers(self.offsets[place + 1] - begin, draw, ids)
        relation = self.relation[edge].long()
        base = key(seed, Stream.NEGATIVES, epoch, _DRAWS)
        other = negatives(self.known, self.question[edge].long(), base, ids)
        nodes = torch.stack([self.heads[place], self.tail[edge].long(), other], dim=1)
        order = torch.argsort(relation, stable=True)
        sizes = torch.bincount(relation, minlength=self.relations).tolist()
        return TranslationBatch(relation[order], nodes[order].view(-1), sizes, order)

    def terms(self, encoded: Encoded, batch: Batch, rows: Tensor) -> Sequence[Term]:
        found: Tensor = self._parameters[0]
        if encoded:  # the rows that the batch reads, in place of their table
            (found,) = encoded
            drawn, place = self._share(batch, rows)
        else:
            drawn = self.batch(batch, rows)
            place = drawn.nodes
        loss, norms = self.model.translation(found, place.to(found.device), drawn)
        count = batch.denominators["edges"]
        return [Term("loss", loss, count), Term("l2", norms, count, self.l2)]

    def end_epoch(self, seed: int, epoch: int) -> None:
        self.model.refresh()

    def parameters(self) -> Sequence[nn.Parameter]:
        return self._parameters

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)

    def state(self) -> dict[str, Tensor]:
        return {"attention": self.model.attention}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.model.set_attention(state["attention"])


def _edges(three: Tensor, places: Tensor) -> Tensor:
    """Of three numbers an edge, [3B], those of the edges at these places."""
    return three.view(-1, 3).index_select(0, places).view(-1)
