"""Training phase of typed graphs: link classification, with an optional contrastive loss.

A step scores some links of every relation and passes messages along all other links: a scored link
and its reverse pass no messages. With the score p(h, r, t) of a link, the losses are

- link, logistic: ``softplus(-p) + (mean over negatives t' of softplus(p(h, r, t'))) / 2`` + the
  same over negative heads h'. Softmax: ``(log(exp p + sum over t' of exp p(h, r, t')) - p) / 2`` +
  the same over h'. Negatives are sampled once per step and type of nodes, and shared by all
  queries for nodes of the type. With self-scores, the given node is one more negative of relations
  within its type. A negative that is a known answer in training is ignored; without filtering only
  t and h themselves are, so that links of the same query compete with each other ("1-vs-all").
  With label smoothing ε, the softmax has ``-(1 - ε) p - ε (mean of all its scores)`` for ``-p``;
- n3: ``sum over k of |z_h,k|³ + |z_t,k|³``, the cubes of both ends (Lacroix et al. 2018);
- contrast: similar nodes against other nodes (:mod:`.contrastive`).

Random numbers are keyed by the step and by what is sampled, not by the micro-batch or process, so
these add up to the same step, with neighbor sampling too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.objectives.contrastive import Contrast, Similar
from hasten.objectives.link_blocks import LinkBlocks, link_loss, losses_by_type, places
from hasten.objectives.link_sampling import LinkSampler, LinkSampling
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.permutations import LastValueCache
from hasten.ops.random import Stream, key, seed_device

#: least share of all messages that the last layer must read for it to be computed for all nodes
MIN_READ_SHARE = 0.5


class LinkModel(Protocol):
    """What the phase needs from a model."""

    def whole_inputs(self, wanted: Int64 | None, scored: NDArray[np.bool_]) -> Any:
        """What :meth:`encode_all` needs for the wanted nodes, or for all, made on the host."""
        ...

    def encode_all(self, inputs: Any) -> Tensor:
        """[S, D] vectors of the wanted nodes from a pass over the whole graph."""
        ...

    def some_inputs(
        self, wanted: Int64, scored: NDArray[np.bool_], fan_out: int | None, seed: int
    ) -> Any:
        """What :meth:`encode_some` needs for the wanted nodes, made on the host."""
        ...

    def encode_some(self, inputs: Any) -> Tensor:
        """[S, D] the same from the neighborhoods of the wanted nodes."""
        ...

    def queries(self, vectors: Tensor, relation: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """[B, D] vectors to multiply with the other end, the relation's bias, and its self-score.

        The last is added to the score of a node with itself; None: nothing is. relation: int64 [B].
        """
        ...


@dataclass(frozen=True)
class LinkInputs:
    """What a micro-batch has from the host.

    encode: for ``encode_some``; () in mode full. wanted, links: the nodes of the vectors and the
    links, for a CPU; blocks: the links for other devices. nodes: int64, the rows of the anchors,
    similar nodes and negatives of the contrastive loss, of these lengths; None without anchors.
    factor: 1 / the number of links of the batch, if shapes are fixed.
    """

    encode: Any
    wanted: Int64
    links: Int64
    blocks: LinkBlocks | None
    nodes: Tensor | None
    lengths: list[int]
    ignored: Tensor | None
    factor: Tensor | None = None


class LinkPhase(Phase):
    """Steps over the links of a graph."""

    name = "links"
    no_capture_reason: str | None = "each batch has another part of the graph"
    #: whether all batches have the same shapes: links and candidates with padding, and the vectors
    #: of all nodes
    fixed = False

    def __init__(
        self,
        model: LinkModel,
        graph: MessageGraph,
        sampling: LinkSampling,
        contrast: Similar | None,
    ) -> None:
        assert isinstance(model, nn.Module)
        self.module: nn.Module = model
        self.model: LinkModel = model
        self.graph, self.sampling = graph, sampling
        self.sampler = LinkSampler(graph, sampling)
        self.links = self.sampler.links
        self.contrast = None if contrast is None else Contrast(contrast)
        self._scored_links: LastValueCache[NDArray[np.bool_]] = LastValueCache()
        self._wanted_nodes: LastValueCache[Int64] = LastValueCache()

    def steps(self) -> int:
        return self.sampler.steps()

    def fix_shapes(self) -> None:
        """Mode full: the last layer has all nodes too, unless most of them are not wanted."""
        if self.sampling.mode != "full":
            return
        wanted = self._wanted_by_batch(self.plan(0, 0, 0))
        read = int(np.diff(self.graph.offsets)[wanted].sum())
        whole = len(self.graph.source)
        if read < MIN_READ_SHARE * whole:
            self.no_capture_reason = (
                f"the last layer would have {whole:,} messages instead of {read:,}"
            )
            return
        self.fixed, self.one_seed_per_step, self.no_capture_reason = True, True, None

    def host_values(self, batch: Batch) -> Any:
        return () if self.fixed else super().host_values(batch)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """ids: links, then anchors of the contrastive loss plus the number of links."""
        links, anchors = self.sampler.sample(seed, epoch, index), np.empty(0, np.int64)
        if self.contrast is not None:
            anchors = self.contrast.sample(seed, epoch, index)
        counts = {"examples": float(len(links)), "anchors": float(max(1, len(anchors)))}
        ids = np.concatenate([links, self.links + anchors])
        return Batch(torch.from_numpy(ids), seed, epoch, index, counts)

    def examples(self, batch: Batch) -> int:
        return int(batch.denominators["examples"])

    def parameters(self) -> Sequence[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def _scored(self, batch: Batch) -> NDArray[np.bool_]:
        """Bool [L]: the links that the whole batch scores."""

        def mark() -> NDArray[np.bool_]:
            scored = np.zeros(self.links, bool)
            ids = batch.ids.numpy()
            scored[ids[ids < self.links]] = True
            return scored

        return self._scored_links.get(batch.key, mark)

    def _wanted(self, batch: Batch, ids: Int64) -> Int64:
        """The nodes whose vectors the terms of these examples need, ascending."""
        links = ids[ids < self.links]
        nodes = [*self.graph.ends(links)]
        relations = np.unique(self.graph.kind(links))
        kinds = np.unique([self.sampler.candidate_types(relations, side) for side in (0, 1)])
        nodes += [self.sampler.negatives(batch, kind) for kind in kinds.tolist()]
        anchors = ids[ids >= self.links] - self.links
        if self.contrast is not None and len(anchors):
            nodes += list(self.contrast.nodes(batch, anchors))
        return np.unique(np.concatenate(nodes))

    def _wanted_by_batch(self, batch: Batch) -> Int64:
        return self._wanted_nodes.get(batch.key, lambda: self._wanted(batch, batch.ids.numpy()))

    @cached_property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def encode_inputs(self, batch: Batch) -> Any:
        if self.sampling.mode != "full":
            return ()
        wanted = None if self.fixed else self._wanted_by_batch(batch)
        return self.model.whole_inputs(wanted, self._scored(batch))

    def term_inputs(self, batch: Batch, ids: Tensor) -> LinkInputs:
        examples, encoder_inputs = ids.numpy(), ()
        if self.fixed:
            nodes_of_batch = np.arange(self.graph.nodes)
        elif self.sampling.mode == "full":
            nodes_of_batch = self._wanted_by_batch(batch)
        else:
            nodes_of_batch, scored = self._wanted(batch, examples), self._scored(batch)
            encoder_inputs = self.model.some_inputs(
                nodes_of_batch, scored, self.sampling.fan_out, self._seed(batch)
            )
        links, anchors = (
            examples[examples < self.links],
            examples[examples >= self.links] - self.links,
        )
        blocks = nodes = ignored = None
        if self.device.type != "cpu" and len(links):
            capacities = self.sampler.capacities if self.fixed else None
            blocks = LinkBlocks.build(self.sampler, batch, nodes_of_batch, links, capacities)
        lengths: list[int] = []
        if self.contrast is not None and len(anchors):
            lists = self.contrast.nodes(batch, anchors)
            if self.fixed:
                lists = self.contrast.padded(lists)
            lengths, nodes = [*map(len, lists)], places(nodes_of_batch, np.concatenate(lists))
            ignored = self.contrast.ignored(lists)
        if self.fixed:  # arrays of the host would be compared as a part of the layout
            nodes_of_batch = links = np.empty(0, np.int64)
        factor = self._factor(batch)
        return LinkInputs(
            encoder_inputs, nodes_of_batch, links, blocks, nodes, lengths, ignored, factor
        )

    def _factor(self, batch: Batch) -> Tensor | None:
        if not self.fixed:
            return None
        kind = accumulation_dtype(self.parameters()[0])
        return torch.tensor(1 / batch.denominators["examples"], dtype=kind)

    def encode(self, batch: Batch) -> Encoded:
        """Mode full: the vectors that the batch needs. Other modes encode each micro-batch."""
        if self.sampling.mode != "full":
            return ()
        if not self.one_seed_per_step:
            seed_device(self.device, self._seed(batch))
        return (self.model.encode_all(self.on_device(batch)),)

    def _seed(self, batch: Batch) -> int:
        return key(batch.seed, Stream.NEIGHBORS, batch.epoch, batch.index)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        inputs: LinkInputs = self.on_device(batch, ids)
        vectors = encoded[0] if encoded else self.model.encode_some(inputs.encode)
        if inputs.blocks is None:
            loss, ends = losses_by_type(
                self.sampler, batch, self.model.queries, vectors, inputs.wanted, inputs.links
            )
        else:
            kind, smoothing = self.sampling.loss, self.sampling.smoothing
            loss, ends = link_loss(kind, self.model.queries, inputs.blocks, vectors, smoothing)
        terms = [Term("link", loss, batch.denominators["examples"], factor=inputs.factor)]
        if self.sampling.n3:
            cubes = _sum_of_cubes(ends, None if inputs.blocks is None else inputs.blocks.weight)
            weight, factor = self.sampling.n3, inputs.factor
            factor = None if factor is None else factor * weight
            terms.append(Term("n3", cubes, batch.denominators["examples"], weight, factor))
        if self.contrast is not None:
            if inputs.nodes is not None and inputs.ignored is not None:
                rows = _normalized(vectors, inputs.nodes, inputs.lengths)
                loss = self.contrast.loss(inputs.ignored, *rows)
            else:
                loss = vectors.new_zeros((), dtype=accumulation_dtype(vectors))
            weight = self.contrast.similar.weight
            terms.append(Term("contrast", loss, batch.denominators["anchors"], weight))
        return terms


def _sum_of_cubes(ends: Tensor, weight: Tensor | None) -> Tensor:
    """The cubes of the vectors [2L, D] of both ends of L links (Lacroix et al. 2018, N3).

    weight: [L], of the links; None: all are 1.
    """
    cubes = ends.abs().pow(3).sum(1, dtype=accumulation_dtype(ends))
    return cubes.sum() if weight is None else cubes @ weight.to(cubes).repeat(2)


def _normalized(vectors: Tensor, nodes: Tensor, lengths: list[int]) -> Sequence[Tensor]:
    """The rows of nodes, with norm 1 in full precision, in parts; on a GPU by one gather."""
    full = accumulation_dtype(vectors)
    if vectors.device.type == "cpu":
        parts = torch.split(nodes, lengths)
        return [F.normalize(vectors.index_select(0, each).to(full)) for each in parts]
    return torch.split(F.normalize(vectors.index_select(0, nodes).to(full)), lengths)
