"""Training phase of KGAT's knowledge graph: translations in relation spaces (TransR; Lin 2015).

An example is an edge (h, r, t) and a sampled node t' that is not a tail of (h, r). Its loss is
``softplus(g(h, r, t) - g(h, r, t'))`` with ``g = ||e_h W_r + e_r - e_t W_r||^2``. Heads are sampled
uniformly, then one of their edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.arrays import distinct
from hasten.objectives.base import Batch, Encoded, ExampleBatches, Term
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.permutations import LastValueCache, PermutationSampler
from hasten.ops.random import Stream, integers, key
from hasten.ops.sharded_table import Shard
from hasten.ops.table_rows import TableRows, is_large_on_device, with_other_rows

#: random numbers independent of those of the pairwise phase
_STREAM = 1


#: slots of a tile
SLOTS = 32


@dataclass(frozen=True)
class RelationTiles:
    """Edges in tiles of :data:`SLOTS` slots; a tile has edges of one relation.

    The number of tiles follows from those of edges and relations: unused slots have the node 0, and
    their results are not read. relation: int64 [n]; slot: int64 [B], where each edge is.
    """

    relation: Tensor
    slot: Tensor


@dataclass(frozen=True)
class TranslationBatch:
    """Edges sorted by relation, each with a negative tail.

    relation: int64 [B]. nodes: int64 [3B], (head, tail, negative) of each edge. sizes: edges of
    each relation. order: int64 [B], the example (from 0) of each edge. With tiles, nodes are those
    of their slots, and neither sizes nor order is needed.
    """

    relation: Tensor
    nodes: Tensor
    sizes: list[int]
    order: Tensor
    tiles: RelationTiles | None = None

    def take(self, edges: Tensor) -> TranslationBatch:
        """These edges. edges: int64, ascending."""
        relation = self.relation[edges]
        sizes = torch.bincount(relation, minlength=len(self.sizes)).tolist()
        return TranslationBatch(relation, _take(self.nodes, edges), sizes, self.order[edges])

    def tiled(self) -> TranslationBatch:
        """The same edges in tiles: a GPU computes all with few launches, of shapes that repeat."""
        sizes, count = torch.tensor(self.sizes), len(self.relation)
        most = (count + len(sizes) * (SLOTS - 1)) // SLOTS
        tiles = (sizes + SLOTS - 1) // SLOTS
        first_slot = (tiles.cumsum(0) - tiles) * SLOTS
        first_edge = sizes.cumsum(0) - sizes
        slot = torch.arange(count) + (first_slot - first_edge)[self.relation]
        kinds = torch.zeros(most, dtype=torch.int64)
        kinds[: int(tiles.sum())] = torch.arange(len(sizes)).repeat_interleave(tiles)
        nodes = torch.zeros(most * SLOTS, 3, dtype=torch.int64)
        nodes[slot] = self.nodes.view(-1, 3)
        found = RelationTiles(kinds, slot)
        return TranslationBatch(self.relation, nodes.view(-1), [], self.order[:0], found)


class TranslationModel(Protocol):
    """What the phase needs from a model."""

    def translation(
        self, rows: Tensor, index: Tensor, batch: TranslationBatch
    ) -> tuple[Tensor, Tensor]:
        """The sums of the loss and of the squared norms. index: int64 [3B], rows of the nodes."""
        ...

    def refresh(self) -> None:
        """Recompute the attention from the weights."""
        ...

    @property
    def attention(self) -> Tensor: ...

    @property
    def attention_shard(self) -> Shard | None:
        """The edges whose attention this process holds; None: all."""
        ...

    def set_attention(self, values: Tensor) -> None: ...


class TranslationPhase(ExampleBatches):
    """As many examples per epoch as there are edges; then the attention is recomputed."""

    name = "translation"
    no_capture_reason: str | None = "each batch has other numbers of edges of the relations"

    def __init__(
        self,
        model: TranslationModel,
        parameters: Sequence[nn.Parameter],
        graph: CollaborativeGraph,
        *,
        batch_size: int,
        l2: float,
    ) -> None:
        super().__init__(len(graph), batch_size, shuffle=False)
        self.model, self._parameters = model, list(parameters)
        self.l2, self.relations = l2, graph.relations
        queries = graph.query_of_edge
        self.known_tails = KnownItems.build(queries, graph.tail, int(queries[-1]) + 1, graph.nodes)
        self.query = torch.from_numpy(queries.astype(np.int32))
        self.relation = torch.from_numpy(graph.relation.astype(np.int32))
        self.tail = torch.from_numpy(graph.tail.astype(np.int32))
        self.heads, first = (torch.from_numpy(a) for a in np.unique(graph.head, return_index=True))
        self.offsets = torch.cat([first, torch.tensor([len(graph)])])
        nodes, most = self._parameters[0], 3 * min(batch_size, self.count)
        #: whether a step on a GPU gathers the rows that it reads
        self.gathers = is_large_on_device([nodes])
        on_device = self.on_device if self.gathers else None
        self.table = TableRows(nodes, self.read, most, on_device=on_device)
        self._sampler = PermutationSampler(len(self.heads), _STREAM)
        self._whole: LastValueCache[tuple[TranslationBatch, Tensor, Tensor]] = LastValueCache()
        #: of a sharded table, whose processes sample their own examples only: the nodes that these
        #: read, and the last of them, which keeps the ids so that no others have their identity
        self._own_nodes: LastValueCache[Tensor] = LastValueCache()
        self._own: LastValueCache[tuple[Tensor, TranslationBatch]] = LastValueCache()

    def shard(self, table: TableRows) -> None:
        super().shard(table)
        self.gathers = table.on_device is not None

    @property
    def _samples_own(self) -> bool:
        return self.table is not None and self.table.shard is not None

    def read(self, batch: Batch) -> Tensor:
        """int64 [S] the distinct nodes of a batch, or of a process if it is sharded, ascending."""
        if not self._samples_own:
            return self._sampled(batch)[1]

        def find() -> Tensor:
            parts = [self._sampled_once(batch, ids).nodes for ids in batch.local_ids]
            return torch.from_numpy(distinct(torch.cat([batch.ids[:0], *parts]).numpy()))

        return self._own_nodes.get(batch.local_key, find)

    def _sampled_once(self, batch: Batch, ids: Tensor) -> TranslationBatch:
        """:meth:`sample`, once if it is called with the same examples again."""
        return self._own.get((batch.key, id(ids)), lambda: (ids, self.sample(batch, ids)))[1]

    def _sampled(self, batch: Batch) -> tuple[TranslationBatch, Tensor, Tensor]:
        """All examples of a batch, its distinct nodes, and the index of each node in these."""

        def sample() -> tuple[TranslationBatch, Tensor, Tensor]:
            whole = self.sample(batch, batch.ids)
            if not self.gathers:
                return whole, *torch.unique(whole.nodes, return_inverse=True)
            nodes, count = distinct(whole.nodes.numpy()), len(self._parameters[0])
            if self.no_capture_reason is None:
                nodes = with_other_rows(nodes, min(len(whole.nodes), count), count)
            rows = torch.from_numpy(nodes)
            return whole, rows, torch.searchsorted(rows, whole.nodes)

        return self._whole.get(batch.key, sample)

    def _part(self, batch: Batch, ids: Tensor) -> tuple[TranslationBatch, Tensor]:
        """These examples, and the index of each node in the distinct nodes that are read."""
        if self._samples_own:
            own = self._sampled_once(batch, ids)
            return own, torch.searchsorted(self.read(batch), own.nodes)
        whole, _, index = self._sampled(batch)
        if ids is batch.ids:
            return whole, index
        edge_of = torch.empty_like(whole.order)
        edge_of[whole.order] = torch.arange(len(edge_of))
        edges = edge_of[ids - batch.ids[0]].sort().values  # the ids of a batch are consecutive
        return whole.take(edges), _take(index, edges)

    def sample(self, batch: Batch, ids: Tensor) -> TranslationBatch:
        """These examples of the epoch, sorted by relation."""
        seed, epoch = batch.seed, batch.epoch
        head = self._sampler.at(seed, epoch, ids)
        begin = self.offsets[head]
        base = key(seed, Stream.POSITIVES, epoch, _STREAM)
        edge = begin + integers(self.offsets[head + 1] - begin, base, ids)
        relation = self.relation[edge].long()
        base = key(seed, Stream.NEGATIVES, epoch, _STREAM)
        negative = negatives(self.known_tails, self.query[edge].long(), base, ids)
        nodes = torch.stack([self.heads[head], self.tail[edge].long(), negative], dim=1)
        order = torch.argsort(relation, stable=True)
        sizes = torch.bincount(relation, minlength=self.relations).tolist()
        return TranslationBatch(relation[order], nodes[order].view(-1), sizes, order)

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        self.sample = wrap(self.sample)  # type: ignore[method-assign]

    def encode_inputs(self, batch: Batch) -> Any:
        return self.read(batch) if self.gathers else ()

    def term_inputs(self, batch: Batch, ids: Tensor) -> TranslationBatch:
        if self.gathers:
            edges, index = self._part(batch, ids)
            return replace(edges, nodes=index).tiled()
        edges = self.sample(batch, ids)
        return edges if self.device.type == "cpu" else edges.tiled()

    def fix_shapes(self) -> None:
        """Tiles have the same shapes in all batches; other rows are gathered besides."""
        self.no_capture_reason = None

    def encode(self, batch: Batch) -> Encoded:
        return (F.embedding(self.on_device(batch), self._parameters[0]),) if self.gathers else ()

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        table: Tensor = self._parameters[0]
        if encoded:  # the rows that the batch reads, instead of the table
            (table,) = encoded
        if encoded and not self.gathers:
            edges, index = self._part(batch, ids)
        else:
            edges = self.on_device(batch, ids)
            index = edges.nodes
        loss, norms = self.model.translation(table, index, edges)
        count = batch.denominators["examples"]
        return [Term("loss", loss, count), Term("l2", norms, count, self.l2)]

    def end_epoch(self, seed: int, epoch: int) -> None:
        self.model.refresh()

    def parameters(self) -> Sequence[nn.Parameter]:
        return self._parameters

    def state(self) -> dict[str, Tensor]:
        return {"attention": self.model.attention}

    def state_shards(self) -> Mapping[str, Shard]:
        shard = self.model.attention_shard
        return {} if shard is None else {"attention": shard}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.model.set_attention(state["attention"])


def _take(nodes: Tensor, edges: Tensor) -> Tensor:
    """The three nodes of each of these edges. nodes: [3B]."""
    return nodes.view(-1, 3).index_select(0, edges).view(-1)
