"""Small models with the structure of KGAT, HGT and ConvE, to test the engine's interfaces.

They are not the models, only their structure: two alternating phases over shared tables with
whole-graph encoding and state kept between epochs; two denominators in one loss; BatchNorm with
fixed-size groups, an entity bias and a chunked catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.ops.random import Stream, integers, key, permutation


class TwoPhaseGraph(nn.Module):
    """KGAT's shape: entity table shared by a CF phase over the propagated graph and a KG phase."""

    def __init__(self, nodes: int = 24, width: int = 6) -> None:
        super().__init__()
        self.entities = nn.Parameter(torch.randn(nodes, width) * 0.3)
        self.mix = nn.Linear(width, width, bias=False)
        self.relation = nn.Parameter(torch.randn(width) * 0.3)
        self.register_buffer("edges", torch.randint(0, nodes, (2, 80)), persistent=True)

    def phases(self) -> list[Phase]:
        return [CollaborativePhase(self), KnowledgePhase(self)]


class CollaborativePhase(Phase):
    """Whole-graph encoding once a step; attention from the weights at the start of the epoch."""

    name = "cf"

    def __init__(self, model: TwoPhaseGraph, examples: int = 50, batch_size: int = 16) -> None:
        self.model, self.count, self.batch_size = model, examples, batch_size
        self.attention = torch.zeros(model.edges.shape[1])
        self.encodings = 0

    def steps(self) -> int:
        return -(-self.count // self.batch_size)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        order = permutation(self.count, key(seed, Stream.PERMUTATION, epoch, 0))
        ids = order[index * self.batch_size : (index + 1) * self.batch_size]
        return Batch(ids, seed, epoch, index, {"pairs": float(len(ids))})

    def start_epoch(self, seed: int, epoch: int) -> None:
        with torch.no_grad():
            head, tail = self.model.edges
            table = self.model.entities
            scores = (table[head] * torch.tanh(table[tail] + self.model.relation)).sum(1)
            self.attention = torch.sigmoid(scores)

    def encode(self, batch: Batch) -> Encoded:
        self.encodings += 1
        head, tail = self.model.edges
        table = self.model.entities
        messages = torch.zeros_like(table).index_add(0, head, self.attention[:, None] * table[tail])
        return (table + F.leaky_relu(self.model.mix(messages)),)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        (nodes,) = encoded
        base = key(batch.seed, Stream.NEGATIVES, batch.epoch)
        user, item = ids % 8, 8 + ids % 16
        other = 8 + integers(16, base, ids)
        margin = (nodes[user] * (nodes[other] - nodes[item])).sum(1)
        norm = (nodes[user] ** 2).sum() + (nodes[item] ** 2).sum()
        size = batch.denominators["pairs"]
        return [Term("bpr", F.softplus(margin).sum(), size), Term("l2", norm, size, 1e-2)]

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        return [Term("whole", (self.model.mix.weight**2).sum(), 1.0, 1e-3)]

    def parameters(self) -> list[nn.Parameter]:
        return [self.model.entities, *self.model.mix.parameters()]

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)

    def state(self) -> dict[str, Tensor]:
        return {"attention": self.attention}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.attention = state["attention"]


class KnowledgePhase(Phase):
    """Translation over triples: another loss and optimiser on the same entity table."""

    name = "kg"

    def __init__(self, model: TwoPhaseGraph, batch_size: int = 32) -> None:
        self.model, self.batch_size = model, batch_size

    def steps(self) -> int:
        return -(-self.model.edges.shape[1] // self.batch_size)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        order = permutation(self.model.edges.shape[1], key(seed, Stream.PERMUTATION, epoch, 1))
        ids = order[index * self.batch_size : (index + 1) * self.batch_size]
        return Batch(ids, seed, epoch, index, {"triples": float(len(ids))})

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        table, (head, tail) = self.model.entities, self.model.edges[:, ids]
        other = integers(len(table), key(batch.seed, Stream.NEGATIVES, batch.epoch, 1), ids)
        translated = table[head] + self.model.relation
        near = ((translated - table[tail]) ** 2).sum(1)
        far = ((translated - table[other]) ** 2).sum(1)
        loss = F.softplus(near - far).sum()
        return [Term("translation", loss, batch.denominators["triples"])]

    def parameters(self) -> list[nn.Parameter]:
        return [self.model.entities, self.model.relation]

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)


class TwoDenominators(nn.Module):
    """HGT's shape: a link loss over sampled edges and a contrastive loss over sampled pairs."""

    def __init__(self, nodes: int = 20, width: int = 5) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(nodes, width) * 0.3)
        self.layer = nn.Linear(width, width)

    def phases(self) -> list[Phase]:
        return [LinkAndContrastPhase(self)]


class LinkAndContrastPhase(Phase):
    """Rows below ``edges`` are edges, the others pairs: each kind has its own denominator."""

    name = "link_and_contrast"
    edges, pairs, batch_size = 41, 13, 18

    def __init__(self, model: TwoDenominators) -> None:
        self.model = model

    def steps(self) -> int:
        return 3

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        order = permutation(self.edges + self.pairs, key(seed, Stream.PERMUTATION, epoch))
        ids = order[index * self.batch_size : (index + 1) * self.batch_size]
        edges = float((ids < self.edges).sum())
        sizes = {"edges": max(edges, 1.0), "pairs": max(len(ids) - edges, 1.0)}
        return Batch(ids, seed, epoch, index, sizes)

    def encode(self, batch: Batch) -> Encoded:
        return (torch.tanh(self.model.layer(self.model.table)), self.model.table * 1.0)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        deep, shallow = encoded
        n = len(deep)
        edge, pair = ids[ids < self.edges], ids[ids >= self.edges]
        link = F.softplus(-(deep[edge % n] * deep[(edge * 7 + 1) % n]).sum(1)).sum()
        contrast = ((shallow[pair % n] - deep[(pair * 5 + 2) % n]) ** 2).sum()
        return [
            Term("link", link, batch.denominators["edges"]),
            Term("contrast", contrast, batch.denominators["pairs"], 0.5),
        ]

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)


class GroupedBatchNorm(nn.Module):
    """BatchNorm over consecutive groups of rows, the same in every layout (no running moments)."""

    def __init__(self, width: int, group: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, track_running_stats=False)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        groups = list(torch.split(x, self.group))
        if len(groups) > 1 and len(groups[-1]) == 1:
            last = groups.pop()
            groups[-1] = torch.cat([groups[-1], last])
        return torch.cat([self.norm(g) for g in groups])


class ConvolutionalScorer(nn.Module):
    """ConvE's shape: BatchNorm, an entity bias, 1-N binary cross-entropy over the catalog."""

    group = 8

    def __init__(self, entities: int = 30, width: int = 6) -> None:
        super().__init__()
        self.entities = nn.Parameter(torch.randn(entities, width) * 0.3)
        self.bias = nn.Parameter(torch.zeros(entities))
        # no bias before a BatchNorm: its true gradient is zero and Adam would let it drift
        self.layer = nn.Linear(width, width, bias=False)
        self.norm = GroupedBatchNorm(width, self.group)

    def phases(self) -> list[Phase]:
        return [OneToAllPhase(self)]


class OneToAllPhase(Phase):
    name = "one_to_all"
    batch_size = 32

    def __init__(self, model: ConvolutionalScorer, queries: int = 89) -> None:
        self.model, self.count = model, queries

    def steps(self) -> int:
        return -(-self.count // self.batch_size)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        order = permutation(self.count, key(seed, Stream.PERMUTATION, epoch))
        ids = order[index * self.batch_size : (index + 1) * self.batch_size]
        sizes = {"scores": float(len(ids) * len(self.model.entities))}
        return Batch(ids, seed, epoch, index, sizes, group=self.model.group)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        table = self.model.entities
        query = self.model.norm(self.model.layer(table[ids % len(table)]))
        total = query.new_zeros(())
        for start in range(0, len(table), 7):  # the catalog in chunks
            stop = min(start + 7, len(table))
            scores = query @ table[start:stop].T + self.model.bias[start:stop]
            column = torch.arange(start, stop)
            true = ((ids[:, None] * 3 + column) % 5 == 0).to(scores.dtype)
            total = total + F.binary_cross_entropy_with_logits(scores, true, reduction="sum")
        return [Term("bce", total, batch.denominators["scores"])]

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)
