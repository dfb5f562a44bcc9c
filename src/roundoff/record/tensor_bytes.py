"""The bytes of a tensor, as they go into a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SAFETENSORS_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def file_dtype(x: Tensor) -> str | None:
    """Return what safetensors calls the dtype of `x`, or None where it has no name for it."""
    return SAFETENSORS_NAMES.get(x.dtype)


def bytes_of(x: Tensor) -> npt.NDArray[Any]:
    """Return the elements of `x` in row-major order as raw bytes, without a copy where it is contiguous on the CPU."""
    plain = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel() == 0:
        return np.empty(0, dtype=np.uint8)
    flat = plain.as_strided((plain.numel(),), (1,))  # one element counts as contiguous at any stride
    return flat.view(torch.uint8).numpy()
