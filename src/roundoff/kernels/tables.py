"""The fixed pseudo-random numbers behind the hash, made the same way here and in csrc/bind_summarize.cpp."""

from __future__ import annotations

import functools

import numpy as np

PERIOD = 1024
"""Hash weights repeat after this many places; a block weight tells the repetitions apart."""

_MASK = (1 << 64) - 1


def splitmix64(x: int) -> int:
    """Scramble 64 bits: the next number of the well-known SplitMix64 generator from state `x`."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@functools.cache
def hash_weights() -> np.ndarray:
    """One odd 32-bit weight for each of the 1024 words of a block."""
    return np.array([splitmix64(i) >> 32 | 1 for i in range(PERIOD)], dtype=np.int64)
