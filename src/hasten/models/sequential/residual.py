"""Residual connections of sequential models: plain, or manifold-constrained hyper-connections.

A network has one :class:`Residuals`. ``expand`` turns the [T, D] tokens into the residual state
that the blocks pass on, ``reduce`` turns the state back into [T, D], and ``connection`` creates the
module around a sublayer, called as ``connection(state, branch)``. The branch is the sublayer with
its pre-norm, from [T, D] to [T, D]. With post-LN the norm follows the sum: ``connection(state,
branch, norm)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

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
#: initial logit of the off-diagonal entries of H_res, so that it is almost the identity
FAR = -8.0
#: initial factor of the token-dependent part of dynamic maps
ALPHA = 0.01
#: initial deviation of the read and write weights from those of the plain residual
SPREAD = 0.5

Branch = Callable[[Tensor], Tensor]


class PlainConnection(nn.Module):
    """``x + branch(x)`` (He et al. 2016)."""

    def forward(self, state: Tensor, branch: Branch, norm: Branch | None = None) -> Tensor:
        out = state + branch(state)
        return out if norm is None else norm(out)


class PlainResiduals:
    """The residual state is the tokens."""

    def expand(self, x_TD: Tensor) -> Tensor:
        """The residual state before the first block."""
        return x_TD

    def reduce(self, state: Tensor) -> Tensor:
        """[T, D] from the residual state after the last block."""
        return state

    def connection(self, sublayer: int) -> nn.Module:
        """A new connection for a sublayer. sublayer: its number, from 0, over all blocks."""
        return PlainConnection()


class HyperConnection(nn.Module):
    """Manifold-constrained hyper-connection around one sublayer (arXiv 2512.24880, equations 3-9).

    Initially the streams have different write weights (1 on average) and read weights (1/n on
    average), orthogonal to each other; ``sign`` swaps them. The output then equals the plain
    residual up to rounding, but the streams and their gradients differ. Equal streams would have
    equal gradients and could only be separated by noise.

    reads: False if all streams are still equal. projection: None if H_res has no effect. dynamic:
    whether the maps depend on the token. Parameters are deviations from the initial values, so
    weight decay pulls towards the plain residual. A shift of all logits of a row of H_res, or of
    all permutations, would have no gradient, so the logits of the identity stay 0.
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

    def forward(self, state: Streams, branch: Branch, norm: Branch | None = None) -> Streams:
        assert norm is None, "hyper-connections are pre-LN"
        pre, post, mixing = self.maps(state)
        seen = state.parts[0] if pre is None else read(state, pre)
        return write(state, branch(seen), post, mixing)

    def maps(self, state: Streams) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """H_pre [n, T'], H_post [n, T'] and H_res [n, n, T'], in float32 or float64.

        None: all streams are equal and the first is read, or H_res is the identity.
        """
        logits = (self.begin + self.bias)[:, None]
        with torch.autocast(logits.device.type, enabled=False):
            if self.weight is not None and self.gain is not None:
                sizes = [size for size in self.sizes if size]
                gains = zip(ALPHA + self.gain, sizes, strict=True)
                gain = torch.cat([one.expand(size) for one, size in gains])
                logits = logits + gain[:, None] * stream_products(state, self.weight)
            pre, post, residual = torch.split(logits, self.sizes)
            read_by = torch.sigmoid(pre) if len(pre) else None
            return read_by, 2 * torch.sigmoid(post), self.mixing(residual)

    def mixing(self, logits: Tensor) -> Tensor | None:
        """H_res, doubly stochastic."""
        n = self.streams
        if self.projection == "sinkhorn":
            # the n (n-1) off-diagonal logits, with zeros inserted for the diagonal
            filled = nn.functional.pad(logits.view(n - 1, n, -1), (0, 0, 0, 1)).flatten(0, 1)
            return sinkhorn(nn.functional.pad(filled, (0, 0, 1, 0)).view(n, n, -1))
        if self.permuting is not None:
            weights = torch.softmax(nn.functional.pad(logits, (0, 0, 1, 0)), dim=0)
            return (self.permuting @ weights).view(n, n, -1)
        return None


@dataclass(frozen=True)
class HyperResiduals:
    """n streams of width D: initially copies of the tokens, finally averaged."""

    streams: int
    width: int
    sublayers: int
    projection: Projection
    dynamic: bool

    def expand(self, x_TD: Tensor) -> Streams:
        return expand(x_TD, self.streams)

    def reduce(self, state: Streams) -> Tensor:
        return reduce(state)

    def connection(self, sublayer: int) -> nn.Module:
        # The first sublayer reads and mixes copies (its norm removes the factor, the gate of a LiGR
        # block learns it); the result of the last is averaged. H_pre and H_res have no effect
        # there, as rows and columns sum to 1.
        mixes = self.projection != "identity" and 0 < sublayer < self.sublayers - 1
        return HyperConnection(
            self.streams,
            self.width,
            sign=-1 if sublayer % 2 else 1,
            reads=sublayer > 0,
            projection=self.projection if mixes else None,
            dynamic=self.dynamic,
        )


#: the residual connections of one network
Residuals = PlainResiduals | HyperResiduals


def _permutations(count: int) -> Tensor:
    """[n², n!] all permutation matrices, the identity first."""
    return torch.eye(count)[torch.tensor(list(permutations(range(count))))].flatten(1).T


def connect(connection: nn.Module, state: Any, branch: Branch, norm: Branch, *, pre: bool) -> Any:
    """The residual state after a sublayer, with layer norm before the branch or after the sum."""
    if pre:
        return connection(state, lambda x_TD: branch(norm(x_TD)))
    return connection(state, branch, norm)
