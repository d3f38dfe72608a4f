"""HGT in plain PyTorch, as fast as it gets without a kernel (Hu et al. 2020, equations 3-6).

Messages are sorted by relation and then source. The keys and values of an edge's source are one
gathered row, and one product per relation maps all its heads. Sums over the edges into a node are
``scatter_add`` with an expanded index, which sorts it and runs in parallel; ``index_add`` does not.
The softmax is normalized after the sum, in the rows of nodes instead of those of edges.

Shapes: E messages, N nodes, T types, R relations, H heads, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.made_graph import MadeGraph


class _GroupedProduct(torch.autograd.Function):
    """One product per group of rows, written into one tensor without joining parts."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, bounds: Sequence[int]
    ) -> Tensor:
        out = rows.new_empty(*rows.shape[:-1], weight.shape[-1])
        for group, (a, b) in enumerate(pairwise(bounds)):
            if bias is None:
                # a product straight into strided rows takes twice as long
                out[a:b] = torch.bmm(rows[a:b].transpose(0, 1), weight[group]).transpose(0, 1)
            else:
                torch.addmm(bias[group], rows[a:b], weight[group], out=out[a:b])
        ctx.save_for_backward(rows, weight)
        ctx.bounds, ctx.has_bias = bounds, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        grad = grad.contiguous()
        d_rows, d_weight = torch.empty_like(rows), torch.empty_like(weight)
        for group, (a, b) in enumerate(pairwise(ctx.bounds)):
            if rows.dim() == 2:
                torch.mm(grad[a:b], weight[group].mT, out=d_rows[a:b])
                torch.mm(rows[a:b].mT, grad[a:b], out=d_weight[group])
            else:
                part = grad[a:b].transpose(0, 1)
                d_rows[a:b] = torch.bmm(part, weight[group].mT).transpose(0, 1)
                torch.bmm(rows[a:b].transpose(0, 1).mT, part, out=d_weight[group])
        d_bias = None
        if ctx.has_bias:
            d_bias = torch.stack([grad[a:b].sum(0) for a, b in pairwise(ctx.bounds)])
        return d_rows, d_weight, d_bias, None


def grouped(rows: Tensor, weight: Tensor, bias: Tensor | None, bounds: Sequence[int]) -> Tensor:
    """[n, K] rows [n, D] times the weight [D, K] of their group, or the same for [n, H, D].

    bounds: rows bounds[g]..bounds[g + 1] belong to group g.
    """
    found: Tensor = _GroupedProduct.apply(rows, weight, bias, bounds)  # type: ignore[no-untyped-call]
    return found


def take(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]``, with a gradient that is added up in parallel."""
    return table.gather(0, index[:, None].expand(-1, table.shape[1]))


def add_up(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """[count, K] the sums of the rows [E, K] with the same index."""
    zeros = rows.new_zeros(count, rows.shape[1])
    return zeros.scatter_add(0, index[:, None].expand_as(rows), rows)


@dataclass(frozen=True)
class Edges:
    """Messages sorted by relation. bounds: those of relation r are bounds[r]..bounds[r + 1]."""

    source: Tensor
    target: Tensor
    bounds: list[int]

    @classmethod
    def of(cls, made: MadeGraph) -> Edges:
        """All messages of a made graph, in its order."""
        source, relation, target, _ = (torch.from_numpy(part) for part in made.messages())
        bounds = torch.searchsorted(relation, torch.arange(len(made.both_ends) + 1))
        return cls(source, target, bounds.tolist())

    def only(self, mask: Tensor) -> Edges:
        """The messages that a bool [E] marks."""
        counts = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)])
        return Edges(self.source[mask], self.target[mask], counts[self.bounds].tolist())


def attend(edges: Edges, query: Tensor, keys_values: Tensor, maps: Tensor, prior: Tensor) -> Tensor:
    """[M, H·d] attention of every target over its edges.

    query: [M, H·d]; keys_values: [N, 2H·d]; maps: [R, 2H, d, d], those of keys and then those of
    values; prior: [R, H].
    """
    heads, width = maps.shape[1] // 2, maps.shape[2]
    # the prior and the scale in the maps of the keys
    scale = torch.cat([prior / math.sqrt(width), torch.ones_like(prior)], 1)
    rows = take(keys_values, edges.source).view(-1, 2 * heads, width)
    key, value = grouped(rows, maps * scale[..., None, None], None, edges.bounds).chunk(2, 1)
    at = edges.target[:, None].expand(-1, heads)
    logits = (take(query, edges.target).view(-1, heads, width) * key).sum(-1)
    with torch.no_grad():
        top = logits.new_full((len(query), heads), -torch.inf)
        top = top.scatter_reduce_(0, at, logits, "amax").gather(0, at)
    weights = torch.exp(logits - top)
    total = logits.new_zeros(len(query), heads).scatter_add(0, at, weights)
    sums = add_up((value * weights[..., None]).flatten(1), edges.target, len(query))
    total = total.masked_fill(total == 0, 1.0)  # a node without edges
    return (sums.view(-1, heads, width) / total[..., None]).flatten(1)


def of_rows(values: Tensor, bounds: list[int]) -> Tensor:
    """The value [..] of each row's type: rows bounds[t]..bounds[t + 1] are of type t."""
    sizes = [b - a for a, b in pairwise(bounds)]
    if values.device.type == "cpu":
        return values.repeat_interleave(torch.tensor(sizes), 0)
    parts = zip(values, sizes, strict=True)  # without a copy of the sizes
    return torch.cat([each.expand(size, *each.shape) for each, size in parts])


class PlainHGTLayer(nn.Module):
    """A layer with a linear map of query, of key and value, and of the result for each type."""

    def __init__(self, types: int, relations: int, width: int, out: int, heads: int) -> None:
        super().__init__()
        size = out // heads

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-1, 1) / math.sqrt(shape[-2]))

        self.query, self.query_bias = made(types, width, out), made(types, out)
        self.keys_values = made(types, width, 2 * out)
        self.keys_values_bias = made(types, 2 * out)
        self.result, self.result_bias = made(types, out, out), made(types, out)
        self.maps = made(relations, 2 * heads, size, size)
        self.prior = nn.Parameter(torch.ones(relations, heads))
        self.skip = nn.Parameter(torch.ones(types)) if width == out else None

    def forward(
        self, edges: Edges, x: Tensor, bounds: list[int], own: Tensor, own_bounds: list[int]
    ) -> Tensor:
        """[M, out] of the targets with inputs own [M, D]; x: [N, D] the sources; both by type."""
        query = grouped(own, self.query, self.query_bias, own_bounds)
        keys_values = grouped(x, self.keys_values, self.keys_values_bias, bounds)
        found = F.gelu(attend(edges, query, keys_values, self.maps, self.prior))
        found = grouped(found, self.result, self.result_bias, own_bounds)
        if self.skip is None:
            return found
        share = of_rows(torch.sigmoid(self.skip), own_bounds)[:, None]
        return torch.lerp(own, found, share)
