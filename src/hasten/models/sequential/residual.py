"""How a sublayer's output joins what flows past it: the residual connections of sequential models.

A network has one :class:`Residuals`. It begins what flows through the blocks from the [T, D] tokens
(``expand``), ends it (``reduce``), and makes the connection of every sublayer, a module called as
``connection(flowing, branch)``. The branch is the sublayer with its pre-norm, a function of [T, D]
to [T, D]; under post-LN the norm comes after the sum: ``connection(flowing, branch, norm)``. What
flows is nobody's affair but the residual's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from hasten.models.sequential.hyper_connections import (
    Streams,
    expand,
    read,
    reduce,
    stream_products,
    write,
)
from hasten.models.sequential.sinkhorn import sinkhorn

Projection = Literal["sinkhorn", "permutation", "identity"]
#: how far from the others a map begins that is to be almost one (the plain residual)
FAR = -8.0
#: with which factor dynamic maps begin to follow their token
ALPHA = 0.01
#: how far shares begin below and above those of the plain residual
SPREAD = 0.5

Branch = Callable[[Tensor], Tensor]


class Residuals(Protocol):
    """The residual connections of one network."""

    def expand(self, x_TD: Tensor) -> Any:
        """What flows into the first block."""
        ...

    def reduce(self, flowing: Any) -> Tensor:
        """[T, D] from what flows out of the last block."""
        ...

    def connection(self, sublayer: int) -> nn.Module:
        """A new connection, for the sublayer of this number (from 0, through all blocks)."""
        ...


class PlainConnection(nn.Module):
    """``x + branch(x)`` (He et al. 2016)."""

    def forward(self, flowing: Tensor, branch: Branch, norm: Branch | None = None) -> Tensor:
        out = flowing + branch(flowing)
        return out if norm is None else norm(out)


class PlainResiduals:
    """What flows are the tokens themselves."""

    def expand(self, x_TD: Tensor) -> Tensor:
        return x_TD

    def reduce(self, flowing: Tensor) -> Tensor:
        return flowing

    def connection(self, sublayer: int) -> nn.Module:
        return PlainConnection()


class HyperConnection(nn.Module):
    """Manifold-constrained hyper-connection around one sublayer (arXiv 2512.24880, equations 3-9).

    In the beginning the streams are written to and read from in different shares (``sign`` swaps
    them), 1 and 1/n on average and orthogonal to one another. So what is read and the mean of the
    streams are the plain residual to the last digits, and yet neither the streams nor their
    gradients are equal, which no gradient could part and noise would.

    reads: False where all streams are still equal; projection: None where H_res could have no
    effect; dynamic: whether the maps follow each token. Parameters are deviations from where they
    begin, so that weight decay draws towards the plain residual. Logits that shift a row of H_res,
    or all permutations, would have no gradient: those of the identity stay 0.
    """

    def __init__(
        self,
        streams: int,
        width: int,
        *,
        sign: int,
        reads: bool,
        projection: Projection | None,
        dynamic: bool,
    ) -> None:
        super().__init__()
        self.streams, self.projection = streams, projection
        slope = sign * torch.linspace(-1, 1, streams)
        bend = sign * (slope.square() - slope.square().mean())  # none for two streams
        share = (1 + SPREAD * bend)[: streams if reads else 0] / streams
        half = (1 + SPREAD * slope) / 2
        mixed = {"sinkhorn": streams * (streams - 1), "permutation": math.factorial(streams) - 1}
        residual = torch.full((mixed.get(projection or "", 0),), FAR)
        parts = [share.logit(), half.logit(), residual]
        self.sizes = [len(part) for part in parts]
        self.begin: Tensor
        self.register_buffer("begin", torch.cat(parts), persistent=False)
        self.bias = nn.Parameter(torch.zeros(sum(self.sizes)))
        self.weight = self.gain = None
        if dynamic:
            self.weight = nn.Parameter(torch.zeros(streams, sum(self.sizes), width))
            self.gain = nn.Parameter(torch.zeros(sum(size > 0 for size in self.sizes)))
        self.permuting: Tensor | None
        permuting = _permutations(streams) if projection == "permutation" else None
        self.register_buffer("permuting", permuting, persistent=False)

    def forward(self, flowing: Streams, branch: Branch, norm: Branch | None = None) -> Streams:
        assert norm is None, "hyper-connections are pre-LN"
        pre, post, mixing = self.maps(flowing)
        seen = flowing.parts[0] if pre is None else read(flowing, pre)
        return write(flowing, branch(seen), post, mixing)

    def maps(self, flowing: Streams) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """H_pre [n, T'], H_post [n, T'] and H_res [n, n, T'], in float32 or float64.

        None: all streams are equal and one is read, or H_res is the identity.
        """
        logits = (self.begin + self.bias)[:, None]
        with torch.autocast(logits.device.type, enabled=False):
            if self.weight is not None and self.gain is not None:
                sizes = [size for size in self.sizes if size]
                gains = zip(ALPHA + self.gain, sizes, strict=True)
                gain = torch.cat([one.expand(size) for one, size in gains])
                logits = logits + gain[:, None] * stream_products(flowing, self.weight)
            pre, post, residual = torch.split(logits, self.sizes)
            read_by = torch.sigmoid(pre) if len(pre) else None
            return read_by, 2 * torch.sigmoid(post), self.mixing(residual)

    def mixing(self, logits: Tensor) -> Tensor | None:
        """H_res, doubly stochastic."""
        n = self.streams
        if self.projection == "sinkhorn":
            # n-1 times n off the diagonal, a zero after each n, and one before: the whole matrix
            filled = nn.functional.pad(logits.view(n - 1, n, -1), (0, 0, 0, 1)).flatten(0, 1)
            return sinkhorn(nn.functional.pad(filled, (0, 0, 1, 0)).view(n, n, -1))
        if self.permuting is not None:
            weights = torch.softmax(nn.functional.pad(logits, (0, 0, 1, 0)), dim=0)
            return (self.permuting @ weights).view(n, n, -1)
        return None


@dataclass(frozen=True)
class HyperResiduals:
    """n streams of the tokens' width, begun as copies and ended as their mean."""

    streams: int
    width: int
    sublayers: int
    projection: Projection
    dynamic: bool

    def expand(self, x_TD: Tensor) -> Streams:
        return expand(x_TD, self.streams)

    def reduce(self, flowing: Streams) -> Tensor:
        return reduce(flowing)

    def connection(self, sublayer: int) -> nn.Module:
        # The first sublayer reads and mixes copies (its norm takes away the factor), the last mixes
        # what is averaged next: H_pre and H_res could have no effect there, as rows and columns of
        # H_res sum to 1.
        mixes = self.projection != "identity" and 0 < sublayer < self.sublayers - 1
        return HyperConnection(
            self.streams,
            self.width,
            sign=-1 if sublayer % 2 else 1,
            reads=sublayer > 0,
            projection=self.projection if mixes else None,
            dynamic=self.dynamic,
        )


def _permutations(count: int) -> Tensor:
    """[n², n!] all permutation matrices, the identity first."""
    return torch.eye(count)[torch.tensor(list(permutations(range(count))))].flatten(1).T


def connect(connection: nn.Module, flowing: Any, branch: Branch, norm: Branch, *, pre: bool) -> Any:
    """Past one sublayer with its layer norm, before the branch or after the sum."""
    if pre:
        return connection(flowing, lambda x_TD: branch(norm(x_TD)))
    return connection(flowing, branch, norm)
