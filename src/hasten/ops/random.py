"""Counter-based random numbers: a pure function of (seed, stream, epoch, example, draw).

There is no generator state to save: the same key gives the same number on every process, in every
micro-batch and after every resume.

The mixing function is the finaliser of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable
pseudorandom number generators", variant 13 of Stafford), applied once per key part: each part is
absorbed by ``state = mix(state + gamma * (part + 1))``. All arithmetic is int64 modulo 2^64, so it
is identical with numpy and with torch on every device.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1


class Stream(IntEnum):
    """Independent sources of randomness; numbers are part of the format of a run: never reuse."""

    PERMUTATION = 1
    NEGATIVES = 2
    DROPOUT = 3
    INITIALISATION = 4
    CANDIDATES = 5
    SPLIT = 6
    SAMPLE = 7
    POSITIVES = 8
    INFLUENCE = 9
    NEIGHBOURS = 10


def mix(value: int) -> int:
    """The SplitMix64 finaliser of one 64-bit integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def key(*parts: int) -> int:
    """One 64-bit key from whole numbers, e.g. ``key(seed, Stream.NEGATIVES, epoch)``."""
    state = 0
    for part in parts:
        state = mix(state + _GAMMA * (part + 1))
    return state


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's int64 shift drags the sign along."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def bits(base: int, *parts: Tensor) -> Tensor:
    """64 random bits for every element of the (broadcast) int64 parts, as int64.

    base: from :func:`key`; parts: e.g. example ids [B, 1] and draw numbers [k].
    """
    state: Tensor | None = None
    gamma = _signed(_GAMMA)
    for part in parts:
        step = (part.to(torch.int64) + 1) * gamma
        state = step + _signed(base) if state is None else step + state
        state = (state ^ _shift_right(state, 30)) * _signed(_MIX_1)
        state = (state ^ _shift_right(state, 27)) * _signed(_MIX_2)
        state = state ^ _shift_right(state, 31)
    if state is None:
        raise ValueError("bits needs at least one tensor of counters")
    return state


def integers(high: Tensor | int, base: int, *parts: Tensor) -> Tensor:
    """Uniform int64 in [0, high) for every element of the broadcast parts.

    high at most 2^31; the bias of the multiply-shift (Lemire 2019) is below high / 2^32.
    """
    return (_shift_right(bits(base, *parts), 32) * high) >> 32


def uniform(base: int, *parts: Tensor) -> Tensor:
    """Uniform float32 in [0, 1) with 24 random bits, for every element of the broadcast parts."""
    return _shift_right(bits(base, *parts), 40).to(torch.float32) * 2.0**-24


def permutation(count: int, base: int) -> Tensor:
    """A random order of 0..count-1 (int64): the argsort of one random key an element."""
    keys = bits(base, torch.arange(count))
    return torch.sort(keys, stable=True).indices


def seed_device(device: torch.device, value: int) -> None:
    """Put the default generator of a device to a state that follows from a key."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value % 2**63)
        return
    if device.type == "mps":
        torch.mps.manual_seed(value % 2**63)
    torch.default_generator.manual_seed(value % 2**63)


def numpy_generator(*parts: int) -> np.random.Generator:
    """A numpy generator for work outside training (samples, splits), keyed like all the rest."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))
