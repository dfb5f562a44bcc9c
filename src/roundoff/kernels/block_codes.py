"""Packs blocks of values into codes of 4 or 8 bits and one fp32 scale per block, and unpacks them.

A code is the index of a number of a `CodeMap`, which is multiplied by the scale of its block. Every value becomes the
nearest such number. On the CPU compiled loops do it in one pass; elsewhere torch operations give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.compiled import compiled_for

_SMALLEST_SCALE: Final = 2.0**-126
_INFINITY: Final = 0x7F800000
_LOW_HALF: Final = 0xFFFF
_FIRST_CELL, _LAST_CELL = (127 - 30) << 7, (127 + 10) << 7
"""Upper halves of 2^-30 and 2^10: below and above these no map has numbers to tell apart."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CodeMap:
    """The number of each code, and how a number finds its code. Tensors are on the CPU.

    The largest magnitude of a block is mapped to `largest`. `cells` says what csrc/block_codes.h describes.
    """

    name: str
    bits: int
    block: int
    largest: float
    values: Tensor
    cells: Tensor
    first_cell: int

    @property
    def num_cells(self) -> int:
        """The number of cells of one sign."""
        return self.cells.numel() // 2

    def num_blocks(self, num_values: int) -> int:
        """Return the number of blocks, and so of scales."""
        return -(-num_values // self.block)

    def num_code_bytes(self, num_values: int) -> int:
        """Return the size of the codes, which are complete in the last block too."""
        return self.num_blocks(num_values) * self.block * self.bits // 8


@functools.cache
def code_map(name: str, *, block: int) -> CodeMap:
    """Return the map of that name.

    - `dynamic8`, `dynamic8-unsigned`, `dynamic4`: the dynamic tree of bitsandbytes. Each power of ten down from 1 has
      half as many numbers as the one above it, evenly spaced; 0 and 1 are numbers, -1 is not.
    - `linear8`: -127/127 ... 127/127. `linear4-unsigned`: 1/16, 2/16 ... 1, without a zero.
    - `e4m3`: as torch casts to it; the largest magnitude of a block becomes 448.
    """
    if name == "e4m3":
        values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        # Clamped, because some versions of torch have NaN beyond the largest number.
        encode = lambda x: x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)  # noqa: E731
        return _with_cells(name, values, encode, block, largest=448.0)
    values = {
        "dynamic8": lambda: _dynamic(8, signed=True),
        "dynamic8-unsigned": lambda: _dynamic(8, signed=False),
        "dynamic4": lambda: _dynamic(4, signed=True),
        "linear8": lambda: torch.arange(-127, 128).float() / 127,
        "linear4-unsigned": lambda: torch.arange(1, 17).float() / 16,
    }[name]()
    thresholds = _thresholds(values)
    return _with_cells(name, values, lambda x: torch.bucketize(x, thresholds, right=True), block)


def _dynamic(bits: int, *, signed: bool) -> Tensor:
    decades = [
        10.0 ** (decade - bits + 2) * ((edges[:-1] + edges[1:]) / 2.0)
        for decade in range(bits - 1)
        for edges in [torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1)]
    ]
    numbers = torch.cat([*decades, *([-each for each in decades] if signed else []), torch.tensor([0.0, 1.0])])
    return numbers.sort().values


def _thresholds(values: Tensor) -> Tensor:
    """Return the smallest fp32 number that is rounded up, between each two neighbours: a tie goes up.

    The distances are computed in fp32, as torchao does, so that the midpoint may be off by an ulp.
    """
    below, above = values[:-1], values[1:]
    middle = ((below.double() + above.double()) / 2).float()
    for _ in range(3):
        middle = torch.nextafter(middle, below)
    for _ in range(6):
        is_up = middle - below >= (above - below) * 0.5
        middle = torch.where(is_up, middle, torch.nextafter(middle, above))
    return middle


def _with_cells(
    name: str, values: Tensor, encode: Callable[[Tensor], Tensor], block: int, *, largest: float = 1.0
) -> CodeMap:
    uppers = torch.arange(_FIRST_CELL, _LAST_CELL, dtype=torch.int32) << 16
    lowers = torch.stack([uppers, uppers | -(2**31)])
    lowest = _codes_at(lowers, encode, 0)
    rises = _codes_at(lowers, encode, _LOW_HALF) - lowest
    assert bool((rises.abs() <= 1).all()), f"two codes of {name} are too close to each other"
    # The first lower half with the next code, by bisection; 2^16 if the cell has one code.
    start, stop = torch.zeros_like(lowers), torch.full_like(lowers, _LOW_HALF + 1)
    for _ in range(17):
        half = (start + stop) // 2
        is_next = _codes_at(lowers, encode, half.clamp(max=_LOW_HALF)) != lowest
        is_next |= half > _LOW_HALF
        start, stop = torch.where(is_next, start, (half + 1).clamp(max=_LOW_HALF + 1)), torch.where(is_next, half, stop)
    cells = lowest | (rises < 0).int() << 8 | stop << 9
    is_plain = ((rises == 0) & (lowest == lowest[:, :1])).all(0)
    is_high = ((rises == 0) & (lowest == lowest[:, -1:])).all(0)
    first, last = int(is_plain.int().argmin()) - 1, cells.shape[1] - int(is_high.flip(0).int().argmin()) + 1
    kept = cells[:, first:last].contiguous().flatten()
    bits = 4 if values.numel() == 16 else 8
    return CodeMap(
        name=name, bits=bits, block=block, largest=largest, values=values, cells=kept, first_cell=_FIRST_CELL + first
    )


def _codes_at(lowers: Tensor, encode: Callable[[Tensor], Tensor], half: Tensor | int) -> Tensor:
    return encode((lowers | half).view(torch.float32)).int()


def pack_blocks(x: Tensor, codes_of: CodeMap, *, codes: Tensor, scales: Tensor) -> None:
    """Write the codes and scales of a flat fp32 tensor.

    A block with a value that is not finite gets the scale NaN, so that all its values come back as NaN. A block whose
    scale would be below the smallest normal number becomes zero.
    """
    _check(x, codes_of, codes, scales)
    kernels = compiled_for(x)
    if kernels is None:
        pack_blocks_torch(x, codes_of, codes=codes, scales=scales)
        return
    m = codes_of
    kernels.pack_blocks(
        x.data_ptr(),
        m.cells.data_ptr(),
        m.first_cell,
        m.num_cells,
        m.largest,
        x.numel(),
        m.block,
        m.bits,
        codes.data_ptr(),
        scales.data_ptr(),
    )
    torch.autograd.graph.increment_version([codes, scales])


def unpack_blocks(codes: Tensor, scales: Tensor, codes_of: CodeMap, *, out: Tensor) -> None:
    """Write the values of packed blocks into a flat fp32 tensor."""
    _check(out, codes_of, codes, scales)
    kernels = compiled_for(out)
    if kernels is None:
        unpack_blocks_torch(codes, scales, codes_of, out=out)
        return
    m = codes_of
    kernels.unpack_blocks(
        codes.data_ptr(), scales.data_ptr(), out.numel(), m.block, m.bits, m.values.data_ptr(), out.data_ptr()
    )
    torch.autograd.graph.increment_version(out)


def _check(x: Tensor, codes_of: CodeMap, codes: Tensor, scales: Tensor) -> None:
    if x.dtype is not torch.float32 or x.dim() != 1 or not x.is_contiguous():
        raise KernelError.explain(
            f"A tensor of {x.dtype} and shape {tuple(x.shape)} cannot be packed in blocks.",
            why="only flat, contiguous float32 tensors can.",
            fix="convert it first: x.float().contiguous().view(-1).",
        )
    wanted = codes_of.num_code_bytes(x.numel()), codes_of.num_blocks(x.numel())
    if (codes.numel(), scales.numel()) != wanted or codes.dtype is not torch.uint8 or scales.dtype is not torch.float32:
        raise KernelError.explain(
            f"{codes.numel()} codes of {codes.dtype} and {scales.numel()} scales of {scales.dtype} do not fit "
            f"{x.numel()} values.",
            why=f"in '{codes_of.name}' they have {wanted[0]} bytes of uint8 and {wanted[1]} scales of float32.",
            fix="make them with the sizes of `num_code_bytes` and `num_blocks`.",
        )


# The same in torch operations, with the same bits as csrc/block_codes.cpp.


def pack_blocks_torch(x: Tensor, codes_of: CodeMap, *, codes: Tensor, scales: Tensor) -> None:
    """Write codes and scales, as `pack_blocks` does."""
    m = codes_of
    rows = torch.nn.functional.pad(x, (0, -x.numel() % m.block)).view(-1, m.block)
    largest = rows.view(torch.int32).bitwise_and(0x7FFFFFFF).amax(1)
    # A tensor, because some devices multiply by the inverse of a Python number instead of dividing.
    scale = largest.view(torch.float32) / torch.full_like(largest, m.largest, dtype=torch.float32)
    is_bad = largest >= _INFINITY
    has_codes = ~is_bad & (scale >= _SMALLEST_SCALE)
    found = _lookup(rows / scale.unsqueeze(1), m)
    found = torch.where(has_codes.unsqueeze(1), found, int(m.cells[0]) & 0xFF).to(torch.uint8)
    if m.bits == 4:
        found = found[:, : m.block // 2] | found[:, m.block // 2 :] << 4
    codes.copy_(found.flatten())
    scales.copy_(torch.where(has_codes, scale, torch.where(is_bad, torch.nan, 0.0)))


def _lookup(x: Tensor, codes_of: CodeMap) -> Tensor:
    m, bits = codes_of, x.view(torch.int32)
    cell = ((bits & 0x7FFFFFFF) >> 16).sub(m.first_cell).clamp(0, m.num_cells - 1)
    found = _on(x.device, m)[0][(cell + (bits < 0) * m.num_cells).long()]
    step = 1 - ((found >> 7) & 2)
    return (found & 0xFF) + torch.where((bits & _LOW_HALF) >= (found >> 9), step, 0)


@functools.cache
def _on(device: torch.device, codes_of: CodeMap) -> tuple[Tensor, Tensor]:
    """Return the cells and values of a map on a device."""
    return codes_of.cells.to(device), codes_of.values.to(device)


def unpack_blocks_torch(codes: Tensor, scales: Tensor, codes_of: CodeMap, *, out: Tensor) -> None:
    """Write values, as `unpack_blocks` does."""
    m = codes_of
    rows = codes.view(scales.numel(), -1)
    if m.bits == 4:
        rows = torch.cat([rows & 15, rows >> 4], 1)
    values = _on(out.device, m)[1][rows.long()] * scales.unsqueeze(1)
    out.copy_(values.flatten()[: out.numel()])
