"""The names that safetensors gives to dtypes, with what numpy and torch call them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDtype:
    """One dtype under its three names; numpy holds the bits where it has no such number."""

    name: str
    numpy: str
    torch: str

    @property
    def num_bytes(self) -> int:
        """The size of one element."""
        return np.dtype(self.numpy).itemsize


TENSOR_DTYPES = {
    dtype.name: dtype
    for dtype in (
        TensorDtype(name="F64", numpy="<f8", torch="float64"),
        TensorDtype(name="F32", numpy="<f4", torch="float32"),
        TensorDtype(name="F16", numpy="<f2", torch="float16"),
        TensorDtype(name="BF16", numpy="<u2", torch="bfloat16"),
        TensorDtype(name="F8_E4M3", numpy="u1", torch="float8_e4m3fn"),
        TensorDtype(name="F8_E5M2", numpy="u1", torch="float8_e5m2"),
        TensorDtype(name="F8_E8M0", numpy="u1", torch="float8_e8m0fnu"),
        TensorDtype(name="C64", numpy="<c8", torch="complex64"),
        TensorDtype(name="I64", numpy="<i8", torch="int64"),
        TensorDtype(name="I32", numpy="<i4", torch="int32"),
        TensorDtype(name="I16", numpy="<i2", torch="int16"),
        TensorDtype(name="I8", numpy="i1", torch="int8"),
        TensorDtype(name="U64", numpy="<u8", torch="uint64"),
        TensorDtype(name="U32", numpy="<u4", torch="uint32"),
        TensorDtype(name="U16", numpy="<u2", torch="uint16"),
        TensorDtype(name="U8", numpy="u1", torch="uint8"),
        TensorDtype(name="BOOL", numpy="?", torch="bool"),
    )
}
"""Every dtype that a tensor file can hold, by its safetensors name."""
