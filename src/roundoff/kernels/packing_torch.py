"""Bit packing in torch operations, with the same bytes as the compiled loops."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_bits_torch(codes: Tensor, *, num_bits: int) -> Tensor:
    """Pack codes; see `roundoff.kernels.packing.pack_bits`."""
    flat = codes.flatten()
    num_bytes = -(-flat.numel() * num_bits // 8)
    # Eight codes fill a 64-bit word up to eight times `num_bits`, which are whole bytes.
    groups = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8).to(torch.int64)
    places = torch.arange(8, device=flat.device) * num_bits
    words = ((groups & ((1 << num_bits) - 1)) << places).sum(1, keepdim=True)
    shifts = torch.arange(num_bits, device=flat.device) * 8
    return ((words >> shifts) & 0xFF).to(torch.uint8).flatten()[:num_bytes]


def unpack_bits_torch(packed: Tensor, *, num_bits: int, num_codes: int) -> Tensor:
    """Unpack codes; see `roundoff.kernels.packing.unpack_bits`."""
    flat = packed.flatten()
    groups = torch.nn.functional.pad(flat, (0, -flat.numel() % num_bits)).view(-1, num_bits).to(torch.int64)
    shifts = torch.arange(num_bits, device=flat.device) * 8
    words = (groups << shifts).sum(1, keepdim=True)
    places = torch.arange(8, device=flat.device) * num_bits
    return ((words >> places) & ((1 << num_bits) - 1)).to(torch.uint8).flatten()[:num_codes]
