"""Counter-based random numbers: a pure function of (seed, stream, epoch, example, counter).

There is no generator state to save: the same key gives the same number in every process, in every
micro-batch and after every resume.

The mixing function is that of :mod:`hasten.data.columns.counter_random`, applied once per key part:
``state = mix(state + gamma * (part + 1))``. All arithmetic is int64 modulo 2^64, so the numbers are
identical in numpy and in torch on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.data.columns.counter_random import GAMMA, MIX_1, MIX_2, Stream, key

__all__ = [
    "Stream",
    "bits",
    "integers",
    "key",
    "permutation",
    "seed_device",
    "signed",
    "uniform",
]


def signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's shift of int64 keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def bits(base: int | Tensor, *parts: Tensor) -> Tensor:
    """64 random bits for every element of the (broadcast) int64 parts, as int64.

    base: from :func:`key`, or an int64 tensor of it (:func:`signed`), so that a CUDA graph can be
    replayed with another one; parts: e.g. example ids [B, 1] and sample numbers [k].
    """
    state: Tensor | None = None
    base = base if isinstance(base, Tensor) else signed(base)
    gamma = signed(GAMMA)
    for part in parts:
        step = (part.to(torch.int64) + 1) * gamma
        state = step + base if state is None else step + state
        state = (state ^ _shift_right(state, 30)) * signed(MIX_1)
        state = (state ^ _shift_right(state, 27)) * signed(MIX_2)
        state = state ^ _shift_right(state, 31)
    if state is None:
        raise ValueError("bits needs at least one tensor of counters")
    return state


def integers(high: Tensor | int, base: int | Tensor, *parts: Tensor) -> Tensor:
    """Uniform int64 in [0, high) for every element of the broadcast parts.

    high at most 2^31; the bias of the multiply-shift (Lemire 2019) is below high / 2^32.
    """
    return (_shift_right(bits(base, *parts), 32) * high) >> 32


def uniform(base: int | Tensor, *parts: Tensor) -> Tensor:
    """Uniform float32 in [0, 1) with 24 random bits, for every element of the broadcast parts."""
    return _shift_right(bits(base, *parts), 40).to(torch.float32) * 2.0**-24


def permutation(count: int, base: int) -> Tensor:
    """A random order of 0..count-1 (int64): the argsort of one random key per element."""
    keys = bits(base, torch.arange(count))
    return torch.sort(keys, stable=True).indices


def seed_device(device: torch.device, value: int) -> None:
    """Seed torch's default generator of a device from a key."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value % 2**63)
        return
    if device.type == "mps":
        torch.mps.manual_seed(value % 2**63)
    torch.default_generator.manual_seed(value % 2**63)
