"""Counter-based random numbers in numpy: a pure function of (key, counter), for splits and samples.

The mixing function is the finalizer of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable
pseudorandom number generators", variant 13 of Stafford). :mod:`hasten.ops.random` draws the same
numbers as tensors. Only whole-number and exact floating-point steps are used, so that the numbers
are the same with every version of numpy.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
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
    NEIGHBORS = 10


def key(*parts: int) -> int:
    """One 64-bit key from whole numbers, e.g. ``key(seed, Stream.NEGATIVES, epoch)``."""
    state = 0
    for part in parts:
        value = (state + GAMMA * (part + 1)) & _MASK
        value = ((value ^ (value >> 30)) * MIX_1) & _MASK
        value = ((value ^ (value >> 27)) * MIX_2) & _MASK
        state = value ^ (value >> 31)
    return state


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64, in place: a bijection of 64-bit integers."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(MIX_1)
    value ^= value >> np.uint64(27)
    value *= np.uint64(MIX_2)
    value ^= value >> np.uint64(31)
    return value


def bits(base: int, count: int, start: int = 0) -> NDArray[np.uint64]:
    """64 random bits for each of the counters start..start+count-1."""
    return bits_at(base, np.arange(start, start + count, dtype=np.uint64))


def bits_at(base: int, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 random bits for each of these counters."""
    value = counters + np.uint64(1)
    value *= np.uint64(GAMMA)
    value += np.uint64(base)
    return mix(value)


def uniform(base: int, count: int, start: int = 0) -> NDArray[np.float64]:
    """Uniform float64 in [0, 1) with 53 random bits, for each counter."""
    value = bits(base, count, start)
    value >>= np.uint64(11)
    return value.astype(np.float64) * 2.0**-53


def integers(high: int, base: int, count: int, start: int = 0) -> NDArray[np.int64]:
    """Uniform int64 in [0, high), high at most 2^31; the bias is below high / 2^32."""
    value = bits(base, count, start)
    value >>= np.uint64(32)
    value *= np.uint64(high)
    value >>= np.uint64(32)
    return value.astype(np.int64)
