"""Dropout whose mask costs a few random bits per element on the CPU.

torch draws CPU dropout masks one float at a time from a Mersenne twister (about 12 ns per element,
often more than the matrix products around it). Here 64-bit words of the same generator are combined
by AND and OR into words whose bits are 1 with the given probability (the binary digits of the
probability, last to first: 1 takes ``word | so far``, 0 takes ``word & so far``), and a table maps
every byte to eight mask values. ``torch.manual_seed`` and activation checkpointing work as usual.
The probability is rounded to the nearest 1/256 (0.5 is exact and costs one bit per element, 0.2
becomes 0.19922 and costs eight) and the scale uses the rounded value, so the expectation is exact.
Other devices use ``torch.nn.functional.dropout`` unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: float32 [256, 8] the bits of every byte, lowest first
_BITS = ((torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu")) & 1).float()


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements with the given probability and scale the rest by 1 / (1 - probability)."""
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    return x * keep_mask(x.shape, probability).to(x.dtype)


def kept_scale(probability: float) -> float:
    """The factor of kept elements, 1/(1-p), with p rounded to the nearest 1/256."""
    threshold = round(probability * 256)
    if not 0 <= threshold < 256:
        raise ValueError(f"dropout probability must be in [0, 1), got {probability}")
    return 256 / (256 - threshold)


def keep_mask(shape: torch.Size, probability: float) -> Tensor:
    """float32 mask of 0 and 1/(1-p), with p rounded to the nearest 1/256."""
    if kept_scale(probability) == 1:
        return torch.ones(shape)
    return mask_of(keep_bytes(shape.numel(), probability), shape, probability)


def keep_bytes(count: int, probability: float) -> Tensor:
    """uint8 [count / 8, rounded up]: the bits of a mask for :func:`mask_of`; probability > 1/512.

    Keep this for the backward pass: one bit per element.
    """
    if torch.compiler.is_compiling():
        # torch.compile can trace neither these random bits nor the view, and merges two calls with
        # the same arguments: so each call gets its own seed, which is drawn inside the graph
        drawn: Tensor = _drawn(torch.randint(2**62, (1,)), count, probability)
        return drawn
    return _draw(count, probability, None)


def _draw(count: int, probability: float, generator: torch.Generator | None) -> Tensor:
    kept = round(256 / kept_scale(probability))
    lowest = (kept & -kept).bit_length() - 1
    words = torch.empty(8 - lowest, (count + 63) // 64, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    chosen = words[0]
    for digit, word in enumerate(words[1:], start=lowest + 1):
        chosen = word | chosen if kept >> digit & 1 else word & chosen
    return chosen.view(torch.uint8)[: (count + 7) // 8]


@torch.library.custom_op("hasten::dropout_bits", mutates_args=())
def _drawn(seed: Tensor, count: int, probability: float) -> Tensor:
    return _draw(count, probability, torch.Generator().manual_seed(int(seed))).clone()


@_drawn.register_fake
def _(seed: Tensor, count: int, probability: float) -> Tensor:  # noqa: ARG001 - only its size
    return torch.empty((count + 7) // 8, dtype=torch.uint8)


def mask_of(bits: Tensor, shape: torch.Size, probability: float) -> Tensor:
    """The float32 mask of the bits from :func:`keep_bytes`."""
    table = _BITS * kept_scale(probability)
    expanded = table.index_select(0, bits.to(torch.int32))
    return expanded.view(-1)[: shape.numel()].view(shape)
