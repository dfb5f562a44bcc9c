"""Packs codes of 1 to 8 bits into bytes without gaps."""

from __future__ import annotations

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.layout import compiled_for


def pack_bits(codes: Tensor, *, num_bits: int) -> Tensor:
    """Pack uint8 codes of `num_bits` bits each, in row-major order, into ceil(numel * num_bits / 8) bytes.

    Code i starts at bit i * num_bits, the lowest bit of a byte first; remaining bits are 0. Bits of a code beyond
    `num_bits` are ignored.

    >>> pack_bits(torch.tensor([1, 2, 3, 0], dtype=torch.uint8), num_bits=2)
    tensor([57], dtype=torch.uint8)
    """
    _check(codes, num_bits)
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
    _check(packed, num_bits)
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


def _check(x: Tensor, num_bits: int) -> None:
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
    num_bytes = -(-flat.numel() * num_bits // 8)
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
