"""Counter-based random numbers in numpy: a pure function of (key, counter), for splits and samples.

The same function as :mod:`hasten.ops.random` (the SplitMix64 finalizer), without torch. It uses
integer and exact floating-point operations only, so every version of numpy gives the same
numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: the streams of ``hasten.ops.random.Stream`` that data uses
STREAM_SPLIT, STREAM_SAMPLE = 6, 7

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1


def key(*parts: int) -> int:
    """One 64-bit key from integers, e.g. ``key(seed, STREAM_SPLIT)``."""
    state = 0
    for part in parts:
        value = (state + _GAMMA * (part + 1)) & _MASK
        value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
        value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
        state = value ^ (value >> 31)
    return state


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 finalizer, in place: a bijection of 64-bit integers."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(_MIX_1)
    value ^= value >> np.uint64(27)
    value *= np.uint64(_MIX_2)
    value ^= value >> np.uint64(31)
    return value


def bits(base: int, count: int, start: int = 0) -> NDArray[np.uint64]:
    """64 random bits for each of the counters start..start+count-1."""
    value = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    value *= np.uint64(_GAMMA)
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
