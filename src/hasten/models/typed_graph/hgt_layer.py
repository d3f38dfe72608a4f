"""A layer of the heterogeneous graph transformer (Hu et al. 2020, equations 3-6).

Query, key and value of a node are linear maps of its type. Each relation has, per head, a map of
keys, a map of values and a prior. The aggregate goes through GELU and a linear map of the node's
type, and is interpolated with the node's input by ``sigmoid(skip)`` if the widths are equal, as in
PyTorch Geometric's ``HGTConv``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.errors import ConfigurationError
from hasten.ops.attention.edge_attention import edge_attention
from hasten.ops.dense.grouped_linear import grouped_linear
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.edge_pairs import EdgePairs
from hasten.ops.graph.typed_edges import TypedEdges


class TypedLinear(nn.Module):
    """A linear map for each node type. weight: [T, D, K]; bias: [T, K]."""

    def __init__(self, types: int, width: int, out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(types, width, out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(types, out).uniform_(-bound, bound))

    def forward(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """[N, K] of rows x [N, D] that are sorted by type; sizes: rows of each type [T]."""
        return grouped_linear(x, self.weight, self.bias, sizes)


def joined(maps: Sequence[TypedLinear], x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The results of several maps of the same rows side by side, by one product for each type."""
    weight = torch.cat([each.weight for each in maps], dim=2)
    bias = torch.cat([each.bias for each in maps], dim=1)
    return grouped_linear(x, weight, bias, sizes)


class HGTLayer(nn.Module):
    """A layer. Nodes are sorted by type in every table.

    attention, message: [R, H, d, d] the maps of relations. prior: [R, H]. skip: [T].
    """

    def __init__(self, types: int, relations: int, width: int, out: int, heads: int) -> None:
        super().__init__()
        require_divisible(out, heads)
        self.heads, self.out = heads, out
        self.query = TypedLinear(types, width, out)
        self.key = TypedLinear(types, width, out)
        self.value = TypedLinear(types, width, out)
        self.result = TypedLinear(types, out, out)
        size = out // heads
        self.attention = nn.Parameter(torch.empty(relations, heads, size, size))
        self.message = nn.Parameter(torch.empty(relations, heads, size, size))
        for maps in (self.attention, self.message):
            bound = math.sqrt(6 / (2 * size))
            nn.init.uniform_(maps, -bound, bound)
        self.prior = nn.Parameter(torch.ones(relations, heads))
        self.skip = nn.Parameter(torch.ones(types)) if width == out else None

    def forward(
        self,
        edges: TypedEdges | EdgePairs,
        x: Tensor,
        sizes: Sequence[int],
        own: Tensor | None = None,
        own_sizes: Sequence[int] | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        """[M, out] of the destinations.

        x: [N, D] the sources. sizes: [T] sources of each type. own, own_sizes: the same of the
        destinations, None: they are the sources. keep: bool [E], the edges to use.
        """
        # once for the three maps, under autocast
        x = x.to(autocast_dtype(x))
        if own is None or own_sizes is None:
            own, own_sizes = x, sizes
            projected = joined((self.query, self.key, self.value), x, sizes)
            queries, keys_values = torch.split(projected, [self.out, 2 * self.out], dim=1)
        else:
            own = own.to(x.dtype)
            queries = self.query(own, own_sizes)
            keys_values = self.keys_values(x, sizes)
        return self.attend(edges, own, own_sizes, queries, keys_values, keep)

    def keys_values(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """[N, 2·out] the keys and values of the sources."""
        return joined((self.key, self.value), x, sizes)

    def attend(
        self,
        edges: TypedEdges | EdgePairs,
        own: Tensor,
        sizes: Sequence[int],
        queries: Tensor,
        keys_values: Tensor,
        keep: Tensor | None = None,
    ) -> Tensor:
        """The same from the queries of the destinations and keys and values of the sources."""
        scale = self.prior / math.sqrt(self.out // self.heads)
        attended = edge_attention(
            edges,
            queries,
            keys_values,
            self.attention * scale[:, :, None, None],
            self.message,
            keep,
        )
        mapped: Tensor = self.result(F.gelu(attended), sizes)
        if self.skip is None:
            return mapped
        share = _of_rows(torch.sigmoid(self.skip), sizes)[:, None]
        return torch.lerp(own, mapped.to(own.dtype), share.to(own.dtype).expand_as(own))


def _of_rows(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """[N] the value of each row's type. values: [T]; sizes: rows of each type."""
    if values.device.type == "cpu":
        return torch.repeat_interleave(values, torch.tensor(sizes), output_size=sum(sizes))
    # without a copy of the sizes to the device
    return torch.cat([each.expand(size) for each, size in zip(values, sizes, strict=True)])


def require_divisible(width: int, heads: int) -> None:
    """Raise ConfigurationError if the number of heads does not divide the width."""
    if width % heads:
        near = [n for n in range(1, min(width, 10_000) + 1) if width % n == 0]
        best = sorted(sorted(near, key=lambda n: abs(n - heads))[:3])
        raise ConfigurationError(
            f"model.heads={heads} does not divide the width {width}; the nearest that do: "
            f"{', '.join(map(str, best))}"
        )
