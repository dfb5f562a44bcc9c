"""Groups of values as codes of 2, 4 or 8 bits, and back.

Each group has its lowest value and its step in bf16; 256 values of 2 bits take 68 bytes where fp32 takes 1024. Rounding
is stochastic: the mean over many keys is the value itself. A zero stays exactly zero and a positive value never becomes
zero in a group without negative ones, because zero has a code of its own where it occurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.groups_torch import compress_groups_torch, expand_groups_torch
from roundoff.kernels.layout import DTYPE_CODES, compiled_for

CODE_BITS: Final = (2, 4, 8)
LONGEST_GROUP: Final = 1024
_BF16, _FP32 = DTYPE_CODES[torch.bfloat16], DTYPE_CODES[torch.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCodes:
    """A flat tensor, compressed.

    `heads` has a row (lowest, step) of bf16 a group. A step with its sign bit set says that code 0 means exactly 0 and
    the other codes lowest, lowest + step, ...; without it code 0 means the lowest value. Groups that have no step,
    because a value is NaN or infinite or the range is immense, are kept as they were in `plain_values`.
    """

    heads: Tensor
    codes: Tensor
    num_values: int
    bits: int
    group: int
    dtype: torch.dtype
    plain_groups: Tensor | None = None
    plain_values: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """All memory that it takes."""
        tensors = (self.heads, self.codes, self.plain_groups, self.plain_values)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def compress_groups(x: Tensor, *, bits: int, group: int = 256, key: int) -> GroupCodes:
    """Compress the values of `x` in row-major order; `key` chooses the random numbers (see `draw_key`).

    Values are taken as fp32; those below its smallest normal number count as zero. The last group may be short. On an
    accelerator this waits for the device once, to learn whether every value is finite.
    """
    _check(x, bits=bits, group=group)
    flat = x.detach().contiguous().view(-1)
    narrow = flat.float() if flat.dtype == torch.float64 else flat
    kernels = compiled_for(narrow)
    if kernels is None:
        heads, codes = compress_groups_torch(narrow, bits=bits, group=group, key=key)
        num_plain = int(heads[:, 1].isnan().sum())
    else:
        num_groups = -(-flat.numel() // group)
        heads = torch.empty((num_groups, 2), dtype=torch.bfloat16)
        codes = torch.empty(num_groups * group * bits // 8, dtype=torch.uint8)
        num_plain = kernels.compress_groups(
            narrow.data_ptr(),
            DTYPE_CODES[narrow.dtype],
            key,
            flat.numel(),
            group,
            bits,
            heads.data_ptr(),
            codes.data_ptr(),
        )
    plain = _plain(flat, heads, group=group) if num_plain else (None, None)
    return GroupCodes(
        heads=heads,
        codes=codes,
        num_values=flat.numel(),
        bits=bits,
        group=group,
        dtype=flat.dtype,
        plain_groups=plain[0],
        plain_values=plain[1],
    )


def expand_groups(compressed: GroupCodes) -> Tensor:
    """Return the values as a flat tensor of the dtype they had.

    A value may come out beyond the largest or below the lowest of its group by up to 1/128 of their distance (the price
    of a step in bf16), never beyond what the dtype can hold.
    """
    c = compressed
    kernels = compiled_for(c.codes)
    computed = torch.bfloat16 if c.dtype == torch.bfloat16 else torch.float32
    if kernels is None:
        flat = expand_groups_torch(c.heads, c.codes, bits=c.bits, group=c.group, num_values=c.num_values).to(computed)
    else:
        flat = torch.empty(c.num_values, dtype=computed)
        kernels.expand_groups(
            c.heads.data_ptr(),
            c.codes.data_ptr(),
            c.num_values,
            c.group,
            c.bits,
            flat.data_ptr(),
            _BF16 if computed == torch.bfloat16 else _FP32,
        )
    if c.dtype == torch.float16:
        largest = torch.finfo(torch.float16).max
        flat = flat.clamp_(-largest, largest)
    flat = flat.to(c.dtype)
    if c.plain_groups is not None and c.plain_values is not None:
        flat[_members(c.plain_groups, group=c.group, num_values=c.num_values)] = c.plain_values
    return flat


def _plain(flat: Tensor, heads: Tensor, *, group: int) -> tuple[Tensor, Tensor]:
    numbers = heads[:, 1].isnan().nonzero().flatten().to(torch.int32)
    return numbers, flat[_members(numbers, group=group, num_values=flat.numel())]


def _members(numbers: Tensor, *, group: int, num_values: int) -> Tensor:
    """Return the places of all values of the numbered groups."""
    places = (numbers.to(torch.int64).unsqueeze(1) * group + torch.arange(group, device=numbers.device)).flatten()
    return places[places < num_values]


def _check(x: Tensor, *, bits: int, group: int) -> None:
    if x.dtype not in DTYPE_CODES or x.layout != torch.strided:
        raise KernelError.explain(
            f"A tensor of {x.dtype}, {x.layout}, cannot be compressed in groups.",
            why="only dense float64, float32, bfloat16 and float16 tensors can.",
            fix="convert it first, for example with x.float().",
        )
    if bits not in CODE_BITS:
        raise KernelError.explain(
            f"Groups have no codes of {bits} bits.", why="a code has 2, 4 or 8 bits.", fix="pass bits=2, 4 or 8."
        )
    if group < 64 or group > LONGEST_GROUP or group % 64:
        raise KernelError.explain(
            f"A group of {group} values cannot be.",
            why=f"it has 64, 128, 192 ... {LONGEST_GROUP} values.",
            fix="pass group=256, or 64 for finer steps.",
        )
