"""Random numbers for stochastic rounding and hashing, the same here and in csrc/random.h and csrc/bind_summarize.cpp.

The random number of an element is a hash of a key and the element's index. It depends on nothing else: not on the
device, the instruction set, the memory layout or the number of threads.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from roundoff.errors import KernelError

PERIOD = 1024
"""Hash weights repeat after this many words; a weight for each block distinguishes the repetitions."""

_MASK_64 = (1 << 64) - 1
_MASK_32 = 0xFFFFFFFF
_MAX_SHORT = 1 << 32
"""Tensors of at most this many elements have indices of 32 bits."""


def draw_key(generator: torch.Generator | None = None, *, stream: int = 0) -> int:
    """Draw a 64-bit key from `generator`, by default torch's; it advances by one number.

    After the same `torch.manual_seed`, the same stream gives the same key on every rank, as needed for weights, which
    must stay equal. A stream per rank (`stream=rank`) gives each rank its own numbers, as needed for activations and
    gradients.

    Raises:
        KernelError: `generator` is on an accelerator; reading it would wait for the device.
    """
    if generator is not None and generator.device.type != "cpu":
        raise KernelError.explain(
            f"Stochastic rounding cannot draw from a generator on {generator.device}.",
            why="reading its number would wait for the device.",
            fix="pass torch.Generator() without a device; it can be used for tensors on accelerators too.",
        )
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    return splitmix64(seed ^ splitmix64(stream & 0xFFFFFFFFFFFFFFFF))


def random_31(index: Tensor, *, key: int) -> Tensor:
    """Return 31 random bits for each int64 `index`."""
    step: Tensor | int = key >> 32 | 1
    if index.numel() > _MAX_SHORT:
        step = (key >> 32 ^ ((index >> 32) * 0x9E3779B9 & _MASK_32)) | 1
    h = (index * step + (key & _MASK_32)) & _MASK_32
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D & _MASK_32
    h = h ^ (h >> 15)
    h = h * 0x846CA68B & _MASK_32
    return (h ^ (h >> 16)) >> 1


def indices_of(x: Tensor) -> Tensor:
    """Return the row-major index of each element of `x`, whatever its strides."""
    return torch.arange(x.numel(), device=x.device).view(x.shape)


def splitmix64(x: int) -> int:
    """Return the next number of the SplitMix64 generator from state `x`."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


@functools.cache
def hash_weights() -> np.ndarray:
    """Return one odd 32-bit weight for each of the 1024 words of a block."""
    return np.array([splitmix64(i) >> 32 | 1 for i in range(PERIOD)], dtype=np.int64)
