"""Dropout whose mask costs a few random bits per element on the CPU.

torch draws CPU dropout masks one float at a time from a Mersenne twister (about 12 ns per element,
often more than the matrix products around it). Here 64-bit words of the same generator are combined
by AND and OR into words whose bits are 1 with the given probability (the binary digits of the
probability, last to first: 1 takes ``word | so far``, 0 takes ``word & so far``), and a table maps
every byte to eight mask values. ``torch.manual_seed`` and activation checkpointing work as usual.
The probability is rounded to the nearest 1/256 (0.5 is exact and costs one bit per element, 0.2
becomes 0.19922 and costs eight) and the scale uses the rounded value, so the expectation is exact.
Other devices use torch's fused dropout unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

#: float32 [256, 8] the bits of every byte, lowest first
_BITS = ((torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu")) & 1).float()
_CPU = torch.device("cpu")


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements with the given probability and scale the rest by 1 / (1 - probability).

    On a CPU in a lower precision, the backward pass keeps one bit per element. In float32 it keeps
    the mask, because expanding the bits twice costs more than it saves (measured with SASRec).
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return torch.native_dropout(x, probability, True)[0]
    # the compiler decides what to keep
    if x.dtype == torch.float32 or torch.compiler.is_compiling():
        return x * keep_mask(x.shape, probability).to(x.dtype)
    dropped: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return dropped


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        mask_bytes = keep_bytes(x.numel(), probability)
        ctx.save_for_backward(mask_bytes)
        ctx.probability = probability
        return x * mask_of(mask_bytes, x.shape, probability, x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask_bytes,) = ctx.saved_tensors
        return grad * mask_of(mask_bytes, grad.shape, ctx.probability, grad.dtype), None


def kept_scale(probability: float) -> float:
    """The factor of kept elements, 1/(1-p), with p rounded to the nearest 1/256."""
    threshold = round(probability * 256)
    if not 0 <= threshold < 256:
        raise ValueError(f"dropout probability must be in [0, 1), got {probability}")
    return 256 / (256 - threshold)


def keep_mask(shape: torch.Size, probability: float) -> Tensor:
    """float32 mask of 0 and 1/(1-p), with p rounded to the nearest 1/256."""
    return mask_of(keep_bytes(shape.numel(), probability), shape, probability, torch.float32)


def keep_bytes(count: int, probability: float, device: torch.device = _CPU) -> Tensor:
    """A mask in the form that backward keeps, for :func:`mask_of`.

    On a CPU uint8 [count / 8, rounded up], one bit per element; elsewhere bool [count].
    """
    if device.type != "cpu":
        return torch.native_dropout(torch.ones(count, device=device), probability, True)[1]
    if torch.compiler.is_compiling():
        # torch.compile can trace neither these random bits nor the view, and merges two calls with
        # the same arguments: so each call gets its own seed, which is drawn inside the graph
        mask_bytes: Tensor = _drawn(torch.randint(2**62, (1,)), count, probability)
        return mask_bytes
    return _draw(count, probability, None)


def _draw(count: int, probability: float, generator: torch.Generator | None) -> Tensor:
    kept_bytes = round(256 / kept_scale(probability))
    if kept_bytes == 256:
        return torch.full(((count + 7) // 8,), 255, dtype=torch.uint8)
    lowest = (kept_bytes & -kept_bytes).bit_length() - 1
    words = torch.empty(8 - lowest, (count + 63) // 64, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    chosen = words[0]
    for digit, word in enumerate(words[1:], start=lowest + 1):
        chosen = word | chosen if kept_bytes >> digit & 1 else word & chosen
    return chosen.view(torch.uint8)[: (count + 7) // 8]


@torch.library.custom_op("hasten::dropout_bits", mutates_args=())
def _drawn(seed: Tensor, count: int, probability: float) -> Tensor:
    return _draw(count, probability, torch.Generator().manual_seed(int(seed))).clone()


@_drawn.register_fake
def _(seed: Tensor, count: int, probability: float) -> Tensor:  # noqa: ARG001 - only its size
    return torch.empty((count + 7) // 8, dtype=torch.uint8)


def mask_of(
    mask_bytes: Tensor, shape: torch.Size, probability: float, dtype: torch.dtype, first: int = 0
) -> Tensor:
    """The mask of 0 and 1/(1-p) from :func:`keep_bytes`. first: the element that it begins with.

    kept: may also be a mask itself, which is then cut.
    """
    stop = first + shape.numel()
    if mask_bytes.dtype == dtype:
        return mask_bytes[first:stop].view(shape)
    if mask_bytes.dtype == torch.bool:
        return (mask_bytes[first:stop].view(shape) * (1 / (1 - probability))).to(dtype)
    table = (_BITS * kept_scale(probability)).to(dtype)
    expanded = table.index_select(0, mask_bytes[first // 8 : (stop + 7) // 8].to(torch.int32)).view(
        -1
    )
    return expanded[first % 8 : first % 8 + shape.numel()].view(shape)


def masks_of(
    mask_bytes: Tensor, shapes: Sequence[Sequence[int]], probability: float, dtype: torch.dtype
) -> Iterable[Tensor]:
    """The masks of these shapes, one after the other, from one :func:`keep_bytes`."""
    sizes = [math.prod(shape) for shape in shapes]
    if torch.compiler.is_compiling():  # it cannot trace parts of bytes
        whole = mask_of(mask_bytes, torch.Size([sum(sizes)]), probability, dtype)
        parts = zip(torch.split(whole, sizes), shapes, strict=True)
        return [part.view(shape) for part, shape in parts]
    begin = zip(accumulate([0, *sizes]), shapes, strict=False)
    return (
        mask_of(mask_bytes, torch.Size(shape), probability, dtype, first) for first, shape in begin
    )
