"""The bytes of a tensor, as they go into a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundoff.tensor_header import TENSOR_DTYPES

SAFETENSORS_NAMES: dict[torch.dtype, str] = {getattr(torch, dtype.torch): name for name, dtype in TENSOR_DTYPES.items()}


def file_dtype(x: Tensor) -> str | None:
    """Return what safetensors calls the dtype of `x`, or None where it has no name for it."""
    return SAFETENSORS_NAMES.get(x.dtype)


def bytes_of(x: Tensor) -> npt.NDArray[Any]:
    """Return the elements of `x` in row-major order as raw bytes, without a copy where it is contiguous on the CPU.

    Not by `Tensor.numpy`, after which torch refuses to resize the memory, as fully sharded modules do.
    """
    plain = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel() == 0:
        return np.empty(0, dtype=np.uint8)
    return np.asarray(_Memory(plain))


class _Memory:
    """The memory of a contiguous tensor, which it keeps alive, for numpy."""

    def __init__(self, x: Tensor) -> None:
        self._kept = x
        shape = (x.numel() * x.element_size(),)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": shape, "data": (x.data_ptr(), True)}
