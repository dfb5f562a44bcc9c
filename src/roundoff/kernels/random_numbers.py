"""Random numbers for stochastic rounding: a hash of a key and an element's index.

The number of an element depends on nothing else: not on the device, the instruction set, the memory layout or the
number of threads. csrc/random.h computes the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.tables import splitmix64

_MASK = 0xFFFFFFFF


def draw_key(generator: torch.Generator | None = None, *, stream: int = 0) -> int:
    """Draw a 64-bit key from torch's default generator, or from `generator`; it advances by one number.

    After the same `torch.manual_seed`, the same stream gives the same key on every rank: right for weights, which must
    stay equal. A stream per rank (`stream=rank`) gives each its own numbers: right for activations and gradients.

    Raises:
        KernelError: `generator` lives on an accelerator; reading it would wait for the device.
    """
    if generator is not None and generator.device.type != "cpu":
        raise KernelError.explain(
            f"Stochastic rounding cannot draw from a generator on {generator.device}.",
            why="its number would have to be fetched, and that waits for the device.",
            fix="pass torch.Generator() without a device; it also serves tensors on accelerators.",
        )
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    return splitmix64(seed ^ splitmix64(stream & 0xFFFFFFFFFFFFFFFF))


def random_31(index: Tensor, *, key: int) -> Tensor:
    """Return 31 random bits for each int64 `index`."""
    step: Tensor | int = key >> 32 | 1
    if index.numel() > _MASK:
        step = (key >> 32 ^ ((index >> 32) * 0x9E3779B9 & _MASK)) | 1
    h = (index * step + (key & _MASK)) & _MASK
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D & _MASK
    h = h ^ (h >> 15)
    h = h * 0x846CA68B & _MASK
    return (h ^ (h >> 16)) >> 1


def indices_of(x: Tensor) -> Tensor:
    """Number the elements of `x` in row-major order, whatever its strides."""
    return torch.arange(x.numel(), device=x.device).view(x.shape)
