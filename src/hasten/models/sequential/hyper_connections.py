"""Residual streams of hyper-connections, stored as mixing coefficients.

Manifold-constrained hyper-connections (arXiv 2512.24880, equation 3, after Zhu et al. 2024):
``X' = H_res X + H_postᵀ F(H_pre X)`` for the streams X [n, D] of every token.

The streams start as n copies of x and are only mixed, so each is x plus a combination of the
branch outputs so far: ``X_i = x + Σ_j mix_ij F_j``. (The rows of H_res sum to 1, so x keeps the
factor 1.) We store ``mix`` and the F_j, and never write a stream to memory. A network of S
sublayers reads S²/2 tensors [T, D] instead of reading and writing about 3·n·S.

Shapes: n streams, S sublayers so far, T tokens, D width, m maps; T' is T if the matrices depend on
the token, otherwise 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.ops.dtypes import upcast

EPSILON = 1e-6
#: tokens whose streams are computed together
CHUNK = 1024


class Streams(NamedTuple):
    """mix: [n, S, T']. parts: x and the outputs of the S branches, [T, D] each."""

    mix: Tensor
    parts: tuple[Tensor, ...]


def expand(x_TD: Tensor, count: int) -> Streams:
    """The initial state: every stream is x."""
    x_TD = upcast(x_TD)
    return Streams(x_TD.new_empty(count, 0, 1), (x_TD,))


def read(streams: Streams, pre: Tensor) -> Tensor:
    """[T, D] the input of a branch, ``H_pre X``. pre: [n, T']."""
    weights = pre.sum(0, keepdim=True)
    if streams.mix.shape[1]:
        weights = torch.cat([weights, (pre[:, None] * streams.mix).sum(0)])
    return weighted_sum(weights, streams.parts)


def write(streams: Streams, out_TD: Tensor, post: Tensor, mixing: Tensor | None) -> Streams:
    """The streams after a branch: ``H_res X + H_postᵀ out``.

    post: [n, T']; mixing: H_res [n, n, T'], rows summing to 1, or None for the identity.
    """
    mix = post[:, None]
    if streams.mix.shape[1]:
        before = streams.mix
        if mixing is not None:
            before = (mixing[:, :, None] * before).sum(1)
        mix = torch.cat([before, mix], dim=1)
    return Streams(mix, (*streams.parts, out_TD.to(mix.dtype)))


def reduce(streams: Streams) -> Tensor:
    """[T, D] the mean of the streams."""
    mean = streams.mix.mean(0)
    return weighted_sum(torch.cat([torch.ones_like(mean[:1]), mean]), streams.parts)


def laid_out(streams: Streams) -> Tensor:
    """[T, n, D] the streams as a tensor."""
    mix, parts = streams
    mixed = parts[0][:, None].expand(-1, len(mix), -1)
    for number, part in enumerate(parts[1:]):
        mixed = mixed + mix[:, number].T[:, :, None] * part[:, None]
    return mixed


def stream_products(streams: Streams, weight: Tensor) -> Tensor:
    """[m, T] ``RMSNorm(vec X) weight`` of all streams of a token at once; weight: [n, m, D].

    In float32 (or float64), also under autocast.
    """
    mix, parts = streams
    with torch.autocast(weight.device.type, enabled=False):
        if not mix.shape[1]:  # the streams are copies: use one
            mix, weight = mix[:1], weight.sum(0, keepdim=True)
        mix = mix.expand(-1, -1, parts[0].shape[0])  # len() would be fixed in an export
        if weight.device.type != "cpu" or torch.compiler.is_compiling():
            return stream_products_reference(Streams(mix, parts), weight)
        out: Tensor = _StreamProducts.apply(mix, weight, *parts)  # type: ignore[no-untyped-call]
        return out


def stream_products_reference(streams: Streams, weight: Tensor) -> Tensor:
    """The same, computed from the materialized streams."""
    flat = laid_out(streams).flatten(1)
    scale = (flat.square().mean(1, keepdim=True) + EPSILON).rsqrt()
    return ((flat * scale) @ weight.transpose(1, 2).flatten(0, 1)).T


def weighted_sum(weights: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """[T, D] ``Σ_j weights_j parts_j``; weights: [S, T']."""
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return weighted_sum_reference(weights, parts)
    out: Tensor = _WeightedSum.apply(weights, *parts)  # type: ignore[no-untyped-call]
    return out


def weighted_sum_reference(weights: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """The same, product by product."""
    total = weights[0, :, None] * parts[0]
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        total = total + weight[:, None] * part
    return total


class _WeightedSum(torch.autograd.Function):
    """Accumulates in place, without a temporary per product."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *parts)
        out = parts[0] * weights[0, :, None]
        for weight, part in zip(weights[1:], parts[1:], strict=True):
            out.addcmul_(part, weight[:, None])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        weights, *parts = ctx.saved_tensors
        grad_weights = torch.empty_like(weights)
        for number, part in enumerate(parts):
            grad_weights[number] = _along(grad, part, weights.shape[1])
        return grad_weights, *(grad * weight[:, None] for weight in weights)


def _along(first: Tensor, second: Tensor, tokens: int) -> Tensor:
    """[T'] inner products of two [T, D], per token or over all tokens."""
    if tokens == 1:
        return torch.dot(first.reshape(-1), second.reshape(-1))
    return torch.einsum("td,td->t", first, second)


class _StreamProducts(torch.autograd.Function):
    """Computes the streams [n, C, D] of a chunk of tokens at a time, and again in backward.

    A chunk fits into the L2 cache; the streams of all tokens would not.
    """

    @staticmethod
    def forward(ctx: Any, mix: Tensor, weight: Tensor, *parts: Tensor) -> Tensor:
        out, scale = mix.new_empty(weight.shape[1], len(parts[0])), mix.new_empty(len(parts[0]))
        transposed = weight.transpose(1, 2)
        for chunk in _chunks(len(parts[0])):
            streams = _streams_of(mix, parts, chunk)
            norm = torch.linalg.vector_norm(streams, dim=2).square_().mean(0)
            scale[chunk] = norm.div_(weight.shape[2]).add_(EPSILON).rsqrt_()
            product = streams[0] @ transposed[0]
            for stream, matrix in zip(streams[1:], transposed[1:], strict=True):
                product.addmm_(stream, matrix)
            out[:, chunk] = product.T
        out *= scale
        ctx.save_for_backward(mix, weight, out, scale, *parts)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        mix, weight, out, scale, *parts = ctx.saved_tensors
        size = len(weight) * weight.shape[2]
        grad_weight, grad_mix = torch.zeros_like(weight), torch.empty_like(mix)
        grad_parts = [torch.empty_like(part) for part in parts]
        # of the norm: d scale / d X = -scale³ X / (n D)
        of_norm = (grad * out).sum(0).mul_(scale.square()).div_(-size)[:, None]
        upper = grad * scale
        for chunk in _chunks(len(parts[0])):
            streams = _streams_of(mix, parts, chunk)
            grad_weight.baddbmm_(upper[:, chunk].expand(len(weight), -1, -1), streams)
            grad_streams = torch.matmul(upper[:, chunk].T, weight)
            grad_streams.addcmul_(streams, of_norm[chunk])
            torch.sum(grad_streams, dim=0, out=grad_parts[0][chunk])
            for number, part in enumerate(parts[1:]):
                grad_mix[:, number, chunk] = torch.linalg.vecdot(grad_streams, part[chunk])
                factors = mix[:, number, chunk, None]
                grad_part = torch.mul(
                    grad_streams[0], factors[0], out=grad_parts[number + 1][chunk]
                )
                for stream, factor in zip(grad_streams[1:], factors[1:], strict=True):
                    grad_part.addcmul_(stream, factor)
        return grad_mix, grad_weight, *grad_parts


def _chunks(tokens: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, tokens)) for start in range(0, tokens, CHUNK)]


def _streams_of(mix: Tensor, parts: Sequence[Tensor], chunk: slice) -> Tensor:
    """[n, C, D] the streams of some tokens."""
    streams = parts[0][None, chunk]
    for number, part in enumerate(parts[1:]):
        factors = mix[:, number, chunk, None]
        if number:
            streams.addcmul_(part[chunk], factors)
        else:
            streams = torch.addcmul(streams, part[chunk], factors)
    return streams
