"""Compresses groups of values to codes of 2, 4 or 8 bits, expands them, and packs codes of 1 to 8 bits into bytes.

Each group stores its lowest value and its step in bf16; 256 values of 2 bits take 68 bytes, in fp32 they take 1024.
Rounding is stochastic: the mean over many keys is the value itself. Zero has a code of its own in groups that contain
zeros, so that a zero stays exactly zero and a positive value never becomes zero in a group without negative values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.compiled import DTYPE_CODES, compiled_for
from roundoff.kernels.random_numbers import random_31

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_STEP = 2.0**125
_LARGEST_VALUE = 2.0**124
_LOW_HALF = 0xFFFF

CODE_BITS: Final = (2, 4, 8)
LONGEST_GROUP: Final = 1024
_BF16, _FP32 = DTYPE_CODES[torch.bfloat16], DTYPE_CODES[torch.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCodes:
    """A compressed flat tensor.

    `heads` has one row (lowest, step) in bf16 for each group. If the sign bit of a step is set, code 0 means exactly 0
    and the other codes mean lowest, lowest + step, ...; otherwise code 0 means the lowest value. Groups without a step,
    because a value is NaN or infinite or the range is too large, are stored uncompressed in `plain_values`.

    On an accelerator the number of such groups is not known without waiting for it. There values beyond 2^124 are
    limited to that, and in a group with values that are not finite the highest code is theirs: they come back as the
    same infinity, or as NaN if a group has several kinds of them.
    """

    heads: Tensor
    codes: Tensor
    num_values: int
    bits: int
    group: int
    dtype: torch.dtype
    plain_groups: Tensor | None = None
    plain_values: Tensor | None = None
    kinds: Tensor | None = None
    """On an accelerator, for each group what its values are that are not finite: -1, 1 (infinite) or 2 (NaN)."""

    @property
    def num_bytes(self) -> int:
        """The size in memory."""
        tensors = (self.heads, self.codes, self.plain_groups, self.plain_values, self.kinds)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def compress_groups(x: Tensor, *, bits: int, group: int = 256, key: int) -> GroupCodes:
    """Compress the values of `x` in row-major order; `key` selects the random numbers (see `draw_key`).

    Values are converted to fp32; those below its smallest normal number count as zero. The last group may be short.
    Nothing waits for an accelerator.
    """
    _check(x, bits=bits, group=group)
    flat = x.detach().contiguous().view(-1)
    narrow = flat.float() if flat.dtype == torch.float64 else flat
    kernels = compiled_for(narrow)
    if not flat.is_cpu:
        heads, codes, kinds = compress_groups_without_waiting(narrow, bits=bits, group=group, key=key)
        return GroupCodes(
            heads=heads, codes=codes, num_values=flat.numel(), bits=bits, group=group, dtype=flat.dtype, kinds=kinds
        )
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
    """Return the values as a flat tensor of their original dtype.

    A value may exceed the range of its group by up to 1/128 of that range, because the step is bf16, but never the
    range of the dtype.
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
    if c.kinds is not None:
        flat = _with_nonfinite(flat, c, c.kinds)
    if c.plain_groups is not None and c.plain_values is not None:
        flat[_members(c.plain_groups, group=c.group, num_values=c.num_values)] = c.plain_values
    return flat


def _plain(flat: Tensor, heads: Tensor, *, group: int) -> tuple[Tensor, Tensor]:
    numbers = heads[:, 1].isnan().nonzero().flatten().to(torch.int32)
    return numbers, flat[_members(numbers, group=group, num_values=flat.numel())]


def _members(numbers: Tensor, *, group: int, num_values: int) -> Tensor:
    """Return the indices of all values in the numbered groups."""
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
            f"Invalid bits={bits} for group codes.", why="a code has 2, 4 or 8 bits.", fix="pass bits=2, 4 or 8."
        )
    if group < 64 or group > LONGEST_GROUP or group % 64:
        raise KernelError.explain(
            f"Invalid group={group}.",
            why=f"a group has 64, 128, 192 ... {LONGEST_GROUP} values.",
            fix="pass group=256, or 64 for finer steps.",
        )


# The same in torch operations, with the same bits as csrc/group_codes.cpp.


def compress_groups_torch(flat: Tensor, *, bits: int, group: int, key: int) -> tuple[Tensor, Tensor]:
    """Return heads and codes, as `compress_groups` does. A group without codes has a NaN step."""
    rows = _rows(flat, group)
    zero = rows.abs() < _SMALLEST_NORMAL
    has_zero = zero.any(1, keepdim=True)
    lowest, step = _rulers(rows, zero, has_zero, num_codes=1 << bits)
    codes = _codes(rows, lowest, step, has_zero, key=key)
    codes = codes.clamp(max=(1 << bits) - 1).masked_fill(zero | step.isnan(), 0)
    signed = torch.where(has_zero & ~step.isnan(), -step, step)
    return _upper_halves(torch.cat([lowest, signed], 1)), _in_planes(codes, bits).flatten()


def compress_groups_without_waiting(flat: Tensor, *, bits: int, group: int, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return heads, codes and kinds, as `GroupCodes` describes them for accelerators.

    Groups of finite values below 2^124 have the heads and codes that `compress_groups_torch` returns.
    """
    rows = _rows(flat, group)
    bad = ~rows.isfinite()
    kinds = rows.masked_fill(~bad, 0.0).sum(1, keepdim=True).clamp(-1, 1).nan_to_num(2.0)
    has_bad = (kinds != 0).int()
    rows = rows.masked_fill(bad, 0.0).clamp(-_LARGEST_VALUE, _LARGEST_VALUE)
    zero = (rows.abs() < _SMALLEST_NORMAL) & ~bad
    has_zero = zero.any(1, keepdim=True)
    lowest, step = _rulers(rows, zero | bad, has_zero, num_codes=(1 << bits) - has_bad)
    largest = (1 << bits) - 1
    codes = torch.minimum(_codes(rows, lowest, step, has_zero, key=key), largest - has_bad)
    codes = codes.masked_fill(zero, 0).masked_fill(bad, largest)
    signed = torch.where(has_zero, -step, step)
    heads = _upper_halves(torch.cat([lowest, signed], 1))
    return heads, _in_planes(codes, bits).flatten(), kinds.flatten().to(torch.int8)


def _codes(rows: Tensor, lowest: Tensor, step: Tensor, has_zero: Tensor, *, key: int) -> Tensor:
    """Return the codes of values that have one, rounded at random."""
    places = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
    fraction = (random_31(places, key=key) >> 7).float() * 2.0**-24
    return ((rows - lowest) * (1.0 / step) + fraction).to(torch.int32) + has_zero.int()


def _with_nonfinite(flat: Tensor, compressed: GroupCodes, kinds: Tensor) -> Tensor:
    """Put back the values that are not finite."""
    c = compressed
    is_highest = _codes_in(c.codes, num_groups=len(kinds), bits=c.bits, group=c.group) == (1 << c.bits) - 1
    values = (kinds.to(flat.dtype) * torch.inf).masked_fill(kinds == 2, torch.nan).unsqueeze(1)
    is_bad = (is_highest & (kinds != 0).unsqueeze(1)).flatten()[: c.num_values]
    return torch.where(is_bad, values.expand(is_highest.shape).flatten()[: c.num_values], flat)


def expand_groups_torch(heads: Tensor, codes: Tensor, *, bits: int, group: int, num_values: int) -> Tensor:
    """Return the values as a flat fp32 tensor, as `expand_groups` does."""
    lowest, step = heads.float().unsqueeze(2).unbind(1)
    counts = _codes_in(codes, num_groups=heads.shape[0], bits=bits, group=group) - step.signbit().int()
    values = counts.float() * step.abs() + lowest
    return values.masked_fill(counts < 0, 0.0).flatten()[:num_values]


def _codes_in(codes: Tensor, *, num_groups: int, bits: int, group: int) -> Tensor:
    """Unpack codes into one row for each group."""
    rows = codes.view(num_groups, group * bits // 8).to(torch.int32)
    return torch.cat([rows >> (plane * bits) & ((1 << bits) - 1) for plane in range(8 // bits)], 1)


def _rows(flat: Tensor, group: int) -> Tensor:
    """Split into groups of fp32; the last one is padded with its first value, which keeps its extremes."""
    missing = -flat.numel() % group
    if missing:
        first = flat[flat.numel() - (group - missing)]
        flat = torch.cat([flat, first.expand(missing)])
    return flat.float().view(-1, group)


def _rulers(rows: Tensor, zero: Tensor, has_zero: Tensor, *, num_codes: int | Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest value of each group, rounded down to bf16, and its step, rounded up, or 0 and NaN."""
    finite = rows.isfinite().all(1, keepdim=True)
    lowest = rows.masked_fill(zero, torch.inf).amin(1, keepdim=True)
    highest = rows.masked_fill(zero, -torch.inf).amax(1, keepdim=True)
    all_zero = lowest > highest
    lowest = _bf16_below(lowest.masked_fill(all_zero, 0.0))
    num_steps = (num_codes - 1 - has_zero.int()).float()
    step = ((highest.masked_fill(all_zero, 0.0) - lowest) / num_steps).clamp(min=_SMALLEST_NORMAL)
    has_codes = finite & (step <= _LARGEST_STEP)
    bits = step.view(torch.int32)
    step = ((bits + _LOW_HALF) & ~_LOW_HALF).view(torch.float32)
    return lowest.masked_fill(~has_codes, 0.0), step.masked_fill(~has_codes, torch.nan)


def _bf16_below(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    return ((bits + (bits < 0).int() * _LOW_HALF) & ~_LOW_HALF).view(torch.float32)


def _upper_halves(x: Tensor) -> Tensor:
    """Convert values that bf16 holds exactly; torch's own conversion may change the bits of NaN."""
    return (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)


def _in_planes(codes: Tensor, bits: int) -> Tensor:
    """Pack a row of n codes into n * bits / 8 bytes: byte j holds the codes j, j + m, j + 2m ..., lowest bits first."""
    planes = codes.view(codes.shape[0], 8 // bits, codes.shape[1] * bits // 8)
    shifts = torch.arange(0, 8, bits, device=codes.device).view(-1, 1)
    return (planes << shifts).sum(1).to(torch.uint8)


def pack_bits(codes: Tensor, *, num_bits: int) -> Tensor:
    """Pack uint8 codes of `num_bits` bits each, in row-major order, into ceil(numel * num_bits / 8) bytes.

    Code i starts at bit i * num_bits, the lowest bit of a byte first; remaining bits are 0. Bits of a code beyond
    `num_bits` are ignored.

    >>> pack_bits(torch.tensor([1, 2, 3, 0], dtype=torch.uint8), num_bits=2)
    tensor([57], dtype=torch.uint8)
    """
    _check_codes(codes, num_bits)
    kernels = compiled_for(codes)
    if kernels is None:
        return pack_bits_torch(codes, num_bits=num_bits)
    codes = codes.contiguous()
    packed = torch.empty(num_packed_bytes(codes.numel(), num_bits=num_bits), dtype=torch.uint8)
    kernels.pack(codes.data_ptr(), codes.numel(), num_bits, packed.data_ptr())
    return packed


def unpack_bits(packed: Tensor, *, num_bits: int, num_codes: int) -> Tensor:
    """Return the first `num_codes` codes of `packed` as a flat uint8 tensor.

    >>> unpack_bits(torch.tensor([57], dtype=torch.uint8), num_bits=2, num_codes=3)
    tensor([1, 2, 3], dtype=torch.uint8)
    """
    _check_codes(packed, num_bits)
    needed = num_packed_bytes(num_codes, num_bits=num_bits)
    if num_codes < 0 or packed.numel() < needed:
        raise KernelError.explain(
            f"{packed.numel()} bytes do not hold {num_codes} codes of {num_bits} bits.",
            why=f"they need {needed} bytes.",
            fix="unpack with the number of codes and bits that were packed.",
        )
    kernels = compiled_for(packed)
    if kernels is None:
        return unpack_bits_torch(packed, num_bits=num_bits, num_codes=num_codes)
    packed = packed.contiguous()
    codes = torch.empty(num_codes, dtype=torch.uint8)
    kernels.unpack(packed.data_ptr(), num_codes, num_bits, codes.data_ptr())
    return codes


def num_packed_bytes(num_codes: int, *, num_bits: int) -> int:
    """Return the number of bytes that the codes need."""
    return -(-num_codes * num_bits // 8)


def _check_codes(x: Tensor, num_bits: int) -> None:
    if not 1 <= num_bits <= 8:
        raise KernelError.explain(
            f"Codes of {num_bits} bits cannot be packed.", why="a code has 1 to 8 bits.", fix="pass num_bits=1 ... 8."
        )
    if x.dtype != torch.uint8:
        raise KernelError.explain(
            f"A tensor of {x.dtype} cannot hold codes.", why="codes are uint8.", fix="convert with x.to(torch.uint8)."
        )


# The same bytes in torch operations, for accelerators and machines without the compiled kernels.


def pack_bits_torch(codes: Tensor, *, num_bits: int) -> Tensor:
    """Pack codes, as `pack_bits` does."""
    flat = codes.flatten()
    num_bytes = num_packed_bytes(flat.numel(), num_bits=num_bits)
    # Eight codes take 8 * num_bits bits of a 64-bit word, a whole number of bytes.
    groups = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8).to(torch.int64)
    places = torch.arange(8, device=flat.device) * num_bits
    words = ((groups & ((1 << num_bits) - 1)) << places).sum(1, keepdim=True)
    shifts = torch.arange(num_bits, device=flat.device) * 8
    return ((words >> shifts) & 0xFF).to(torch.uint8).flatten()[:num_bytes]


def unpack_bits_torch(packed: Tensor, *, num_bits: int, num_codes: int) -> Tensor:
    """Unpack codes, as `unpack_bits` does."""
    flat = packed.flatten()
    groups = torch.nn.functional.pad(flat, (0, -flat.numel() % num_bits)).view(-1, num_bits).to(torch.int64)
    shifts = torch.arange(num_bits, device=flat.device) * 8
    words = (groups << shifts).sum(1, keepdim=True)
    places = torch.arange(8, device=flat.device) * num_bits
    return ((words >> places) & ((1 << num_bits) - 1)).to(torch.uint8).flatten()[:num_codes]
