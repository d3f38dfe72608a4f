"""n residual streams beside one another, read from and written to by every sublayer.

Manifold-constrained hyper-connections (arXiv 2512.24880, equation 3, after Zhu et al. 2024):
``X' = H_res X + H_postᵀ F(H_pre X)`` for the streams X [n, D] of every token.

The streams are begun as n copies of x and only ever mixed, so each of them is x plus a combination
of the branches' outputs so far: ``X_i = x + Σ_j mix_ij F_j`` (H_res is doubly stochastic, its rows
sum to 1, so x keeps the factor 1). That is how they are held: small matrices are mixed instead of
n·D numbers a token, and no stream is ever written to memory. A network of S sublayers reads S²/2
tensors [T, D] instead of writing and reading some 3·n·S of them.

Shapes: n streams, S sublayers so far, T tokens, D width, m maps; T' is T where the matrices are a
token's own, and 1 where all tokens share them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.ops.dtypes import wide

#: tokens whose streams are laid out at a time, to stay in the second-level cache
CHUNK = 1024
EPSILON = 1e-6


class Streams(NamedTuple):
    """mix: [n, S, T']; parts: what flowed in and the S branches' outputs, [T, D] each."""

    mix: Tensor
    parts: tuple[Tensor, ...]


def expand(x_TD: Tensor, count: int) -> Streams:
    """The beginning: every stream is x."""
    return Streams(x_TD.new_empty(count, 0, 1, dtype=wide(x_TD)), (x_TD.to(wide(x_TD)),))


def read(streams: Streams, pre: Tensor) -> Tensor:
    """[T, D] what a branch sees: ``H_pre X``, pre: [n, T']."""
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
    """[T, D] the end: the mean of the streams."""
    mean = streams.mix.mean(0)
    return weighted_sum(torch.cat([torch.ones_like(mean[:1]), mean]), streams.parts)


def laid_out(streams: Streams) -> Tensor:
    """[T, n, D] the streams themselves."""
    return _laid_out(streams.mix, streams.parts)


def stream_products(streams: Streams, weight: Tensor) -> Tensor:
    """[m, T] ``RMSNorm(vec X) weight`` of all streams of a token at once; weight: [n, D, m].

    In float32 (or float64), within autocast too.
    """
    mix, parts = streams
    with torch.autocast(weight.device.type, enabled=False):
        if not mix.shape[1]:  # the streams are copies: one does for all
            mix, weight = mix[:1], weight.sum(0, keepdim=True)
        if weight.device.type != "cpu" or torch.compiler.is_compiling():
            return stream_products_reference(Streams(mix, parts), weight)
        out: Tensor = _StreamProducts.apply(mix, weight, *parts)  # type: ignore[no-untyped-call]
        return out


def stream_products_reference(streams: Streams, weight: Tensor) -> Tensor:
    """The same on the streams themselves."""
    flat = laid_out(streams).flatten(1)
    scale = (flat.square().mean(1, keepdim=True) + EPSILON).rsqrt()
    return ((flat * scale) @ weight.flatten(0, 1)).T


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
    """In place: no product is ever a tensor of its own."""

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
    """[T'] products of two [T, D], a token at a time or all together."""
    if tokens == 1:
        return torch.dot(first.reshape(-1), second.reshape(-1))
    return torch.einsum("td,td->t", first, second)


def _laid_out(mix: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    streams = parts[0][:, None].expand(-1, len(mix), -1)
    for number, part in enumerate(parts[1:]):
        streams = streams + mix[:, number].T[:, :, None] * part[:, None]
    return streams


class _StreamProducts(torch.autograd.Function):
    """The streams of a chunk of tokens at a time, laid out once more in the backward pass.

    They are ``factors @ stacked`` of a token: [n, S+1] by [S+1, D].
    """

    @staticmethod
    def forward(ctx: Any, mix: Tensor, weight: Tensor, *parts: Tensor) -> Tensor:
        tokens, size = len(parts[0]), len(weight) * weight.shape[1]
        flat_weight = weight.reshape(size, -1)
        factors = mix.new_ones(tokens, len(mix), len(parts))
        factors[:, :, 1:] = mix.permute(2, 0, 1)
        out, scale = mix.new_empty(flat_weight.shape[1], tokens), mix.new_empty(tokens)
        for chunk in _chunks(tokens):
            stacked = torch.stack([part[chunk] for part in parts], dim=1)
            flat = torch.bmm(factors[chunk], stacked).view(-1, size)
            norm = torch.linalg.vector_norm(flat, dim=1)
            scale[chunk] = norm.square_().div_(size).add_(EPSILON).rsqrt_()
            out[:, chunk] = (flat @ flat_weight).T
        out *= scale
        ctx.save_for_backward(factors, weight, out, scale, *parts)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        factors, weight, out, scale, *parts = ctx.saved_tensors
        size = len(weight) * weight.shape[1]
        flat_weight = weight.reshape(size, -1)
        grad_weight, grad_factors = torch.zeros_like(flat_weight), torch.empty_like(factors)
        grad_parts = [torch.empty_like(part) for part in parts]
        # of the norm: d scale / d X = -scale³ X / (n D)
        inner = (grad * out).sum(0).mul_(scale.square()).div_(-size)[:, None]
        products = (grad * scale).T.contiguous()
        for chunk in _chunks(len(parts[0])):
            stacked = torch.stack([part[chunk] for part in parts], dim=1)
            flat = torch.bmm(factors[chunk], stacked).view(-1, size)
            grad_weight.addmm_(flat.T, products[chunk])
            grad_flat = torch.addmm(flat.mul_(inner[chunk]), products[chunk], flat_weight.T)
            grad_streams = grad_flat.view(len(flat), len(weight), -1)
            grad_factors[chunk] = torch.bmm(grad_streams, stacked.transpose(1, 2))
            grad_stacked = torch.bmm(factors[chunk].transpose(1, 2), grad_streams)
            for grad_part, found in zip(grad_parts, grad_stacked.unbind(1), strict=True):
                grad_part[chunk] = found
        grad_mix = grad_factors[:, :, 1:].permute(1, 2, 0)
        return grad_mix, grad_weight.view_as(weight), *grad_parts


def _chunks(tokens: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, tokens)) for start in range(0, tokens, CHUNK)]
