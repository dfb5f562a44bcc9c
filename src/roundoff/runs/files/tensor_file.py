"""Reads whole tensors from a safetensors file, mapped rather than loaded; and the names of its dtypes."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from roundoff.errors import RunFolderError

if TYPE_CHECKING:
    import torch


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


MAX_HEADER_BYTES = 100 * 2**20
"""A longer header is refused, as by the safetensors library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies in the file, and what it is."""

    dtype: str
    """As safetensors names it: F32, BF16, ..."""
    shape: tuple[int, ...]
    begin: int
    """Its first byte, counted from the start of the file."""
    end: int


class TensorFile(Mapping[str, npt.NDArray[Any]]):
    """The tensors of one file by key, as read-only arrays over the mapped file.

    bfloat16 and the 8-bit floats, which numpy does not know, come as the uint16 or uint8 of their bits; `entry(key)`
    says what they are, and `torch(key)` gives them as torch tensors. The arrays stay valid as long as they are
    referred to, also after the file is closed.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise _invalid_file_error(self.path, str(error)) from error
        try:
            self._entries, self.aliases = _read_header(self._data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _invalid_file_error(self.path, str(error)) from error

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        entry = self.entry(key)
        dtype = np.dtype(TENSOR_DTYPES[entry.dtype].numpy)
        return np.ndarray(entry.shape, dtype, buffer=self._data, offset=entry.begin)

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from self.aliases

    def __len__(self) -> int:
        return len(self._entries) + len(self.aliases)

    def __contains__(self, key: object) -> bool:
        return key in self._entries or key in self.aliases

    def entry(self, key: str) -> TensorEntry:
        """Return dtype, shape and place of a tensor; a `KeyError` if there is none."""
        return self._entries[self.aliases.get(key, key)]

    def torch(self, key: str) -> torch.Tensor:
        """Return a copy of the tensor in its own dtype, on the CPU."""
        import torch

        dtype = getattr(torch, TENSOR_DTYPES[self.entry(key).dtype].torch)
        return torch.from_numpy(self[key].copy()).view(dtype)

    def close(self) -> None:
        """Let go of the file; it is unmapped when the last array that looks at it goes."""
        self._data = memoryview(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_header(data: memoryview) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"its header claims {length} bytes, and the file has {len(data)}")
    header = json.loads(bytes(data[8 : 8 + length]))
    metadata = header.pop("__metadata__", {})
    entries = {key: _entry(key, value, 8 + length, len(data)) for key, value in header.items()}
    aliases = json.loads(metadata.get("aliases", "{}"))
    for alias, key in aliases.items():
        if key not in entries or alias in entries:
            raise ValueError(f"'{alias}' is an alias of '{key}', which is not in the file")
    return entries, aliases


def _entry(key: str, value: dict[str, Any], start: int, file_size: int) -> TensorEntry:
    dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    if dtype not in TENSOR_DTYPES:
        raise ValueError(f"'{key}' has the unknown dtype {dtype!r}")
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"'{key}' has a shape or place that is not made of counts")
    if end - begin != math.prod(shape) * TENSOR_DTYPES[dtype].num_bytes or start + end > file_size:
        raise ValueError(f"'{key}' does not fit the bytes it claims")
    return TensorEntry(dtype=dtype, shape=shape, begin=start + begin, end=start + end)


def _invalid_file_error(path: Path, why: str) -> RunFolderError:
    return RunFolderError.explain(f"'{path}' cannot be read.", why=f"{why}.", fix="take it from a copy of the run.")
