"""A training step of HGT for the sides that are not hasten: the same model, links and loss.

hasten's default model: a trained vector of each node, two layers of typed attention with layer norm
by type, a linear map, and the DistMult decoder with the logistic loss. A step scores some links of
every relation against drawn ends of the right type; all other links pass messages, both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.made_graph import MadeGraph
from bench.plain_hgt import Edges, PlainHGTLayer, of_rows, take

HIDDEN, WIDTH, HEADS, LAYERS, NEGATIVES = 256, 512, 8, 2, 64


@dataclass(frozen=True)
class Arranged:
    """The messages of the first layers and of the last one, into the wanted nodes.

    bounds: the wanted nodes of type t are bounds[t]..bounds[t + 1].
    """

    edges: Edges
    last: Edges
    wanted: Tensor
    bounds: list[int]


class PlainHGT(nn.Module):
    """The encoder in plain PyTorch. The last layer computes the wanted nodes only.

    Like every side's encoder it is called with keep, bool [L], the links that pass messages, and
    wanted, int64 [S] ascending, the nodes whose vectors [S, WIDTH] it returns.
    """

    def __init__(self, made: MadeGraph) -> None:
        super().__init__()
        relations, types = len(made.both_ends), len(made.sizes)
        self.edges, self.link = Edges.of(made), torch.from_numpy(made.messages()[3])
        self.bounds = made.offsets.tolist()
        self.inputs = nn.Parameter(torch.randn(self.bounds[-1], HIDDEN) * 0.1)
        self.layers = nn.ModuleList(
            PlainHGTLayer(types, relations, HIDDEN, HIDDEN, HEADS) for _ in range(LAYERS)
        )
        self.gains = nn.Parameter(torch.ones(LAYERS, types, HIDDEN))
        self.shifts = nn.Parameter(torch.zeros(LAYERS, types, HIDDEN))
        self.result = nn.Linear(HIDDEN, WIDTH)

    def forward(self, keep: Tensor, wanted: Tensor) -> Tensor:
        return self.encode(self.arranged(keep, wanted))

    def arranged(self, keep: Tensor, wanted: Tensor) -> Arranged:
        """What :meth:`encode` needs, where ``keep`` and ``wanted`` are."""
        edges = self.edges.only(keep[self.link])
        place = torch.full((self.bounds[-1],), -1)
        place[wanted] = torch.arange(len(wanted))
        last = edges.only(place[edges.target] >= 0)
        last = Edges(last.source, place[last.target], last.bounds)
        return Arranged(
            edges, last, wanted, torch.searchsorted(wanted, torch.tensor(self.bounds)).tolist()
        )

    def encode(self, arranged: Arranged) -> Tensor:
        """[S, WIDTH] the vectors of the wanted nodes."""
        x: Tensor = self.inputs
        for number, layer in enumerate(self.layers):
            own, own_bounds, edges = x, self.bounds, arranged.edges
            if number == LAYERS - 1:
                own, own_bounds = take(x, arranged.wanted), arranged.bounds
                edges = arranged.last
            x = layer(edges, x, self.bounds, own, own_bounds)
            gain, shift = (of_rows(p[number], own_bounds) for p in (self.gains, self.shifts))
            x = torch.addcmul(shift, F.layer_norm(x, x.shape[1:]), gain)
        found: Tensor = self.result(x)
        return found


class LinkStep(nn.Module):
    """The model of a side, and its training step.

    scored: links of each relation that a step scores. passes: shares that the scored links are
    scored in, each after an encoding of its own, as the HGT guide trains. kinds: [2, R] the types
    of the drawn tails, and of the drawn heads.
    """

    kinds: Tensor

    def __init__(self, made: MadeGraph, encoder: nn.Module, scored: int, passes: int) -> None:
        super().__init__()
        self.encoder = encoder
        relations = len(made.ends)
        self.relations = nn.Parameter(torch.ones(relations, WIDTH))
        self.bias = nn.Parameter(torch.zeros(relations))
        self.head, self.relation, self.tail = (
            torch.from_numpy(part) for part in (made.head, made.relation, made.tail)
        )
        self.register_buffer("kinds", torch.from_numpy(made.ends).T.flip(0).contiguous())
        self.first = torch.from_numpy(made.offsets)[:-1, None]
        self.sizes = torch.from_numpy(made.sizes)[:, None]
        self.scored, self.passes = scored, passes
        self.optimizer = torch.optim.Adam(self.parameters(), 1e-3, fused=True)
        self.shares: list[Tensor] = []
        self.keep = torch.empty(0)

    def take_pass(self) -> float:
        """A pass of a step, with the update after the last one."""
        if not self.shares:
            links = self.draw_links()
            self.keep = torch.ones(len(self.head), dtype=torch.bool).index_fill_(
                0, links.flatten(), False
            )
            self.shares = list(links.tensor_split(self.passes, 1))
            self.optimizer.zero_grad()
        loss = self.loss(self.shares.pop()) / (self.scored * len(self.relations))
        loss.backward()  # type: ignore[no-untyped-call]
        if not self.shares:
            self.optimizer.step()
        return float(loss.detach())

    def draw_links(self) -> Tensor:
        """[R, scored] links of every relation."""
        order = torch.argsort(self.relation + torch.rand(len(self.relation)))
        first = torch.searchsorted(self.relation[order], torch.arange(len(self.relations)))
        return order[first[:, None] + torch.arange(self.scored)]

    def loss(self, links: Tensor) -> Tensor:
        """The sum over links [R, n], of all relations at once."""
        wanted, place = self.nodes(links)
        return self.scored_loss(self.encoder(self.keep, wanted), place)

    def nodes(self, links: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct nodes of links [R, n] and drawn ends, and the place of each among them.

        Places are [2R·n + T·NEGATIVES]: of heads, tails, and the drawn nodes of each type, which
        all relations with ends of the type share.
        """
        drawn = (torch.rand(len(self.sizes), NEGATIVES) * self.sizes).long() + self.first
        nodes = torch.cat([each.flatten() for each in (self.head[links], self.tail[links], drawn)])
        wanted, place = torch.unique(nodes, return_inverse=True)
        return wanted, place

    def scored_loss(self, vectors: Tensor, place: Tensor) -> Tensor:
        """The sum over links, from the vectors of the distinct nodes."""
        of_drawn = len(self.sizes) * NEGATIVES
        rows = take(vectors, place)
        head, tail = rows[:-of_drawn].view(2, len(self.relations), -1, WIDTH)
        drawn = rows[-of_drawn:].view(-1, NEGATIVES, WIDTH)
        tails, heads = drawn[self.kinds[0]], drawn[self.kinds[1]]
        weight = (self.relations * WIDTH**-0.5)[:, None]
        given, bias = head * weight, self.bias[:, None]
        total = F.softplus(-(given * tail).sum(-1) - bias).sum()
        for queries, others in ((given, tails), (tail * weight, heads)):
            scores = torch.baddbmm(bias[..., None], queries, others.mT)
            total = total + F.softplus(scores).sum() / (2 * NEGATIVES)
        return total
