"""An open checkpoint: its tensors by name, with shapes and dtypes that are checked, read one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.errors import CheckpointError
from roundoff.tensor_header import TENSOR_DTYPES, parse_shape

if TYPE_CHECKING:
    from torch import Tensor

    JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    """A JSON value; floats may be NaN or infinite."""
else:
    JsonValue = object

NUM_BYTES = {dtype.torch: dtype.num_bytes for dtype in TENSOR_DTYPES.values()} | {"complex32": 4, "complex128": 16}
"""Every dtype that a tensor of a checkpoint can have, in torch's names, and the size of one element."""

TENSOR_BYTES = 700
"""What the description of a tensor takes in memory."""
MAX_REPEATED_BYTES = 2**20
"""A tensor whose elements share memory (an expanded one) may be this much larger than its storage."""


class Role(StrEnum):
    """What a tensor is for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    """Step counters, scalars, settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a checkpoint, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """In torch's names: "float32", "bfloat16", "int64"."""
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyTensor:
    """Shape and dtype of a tensor in a file; `read` returns its values, in memory of their own."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    role: Role | None = None
    """Set if the file itself states the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor(LazyTensor):
    """A tensor with a name; each call of `read` may read the file again. Tensors that share it have the same values."""

    name: str

    @classmethod
    def of(cls, entry: Entry, read: Callable[[], Tensor]) -> StoredTensor:
        """Return the tensor that an entry describes."""
        return cls(name=entry.name, shape=entry.shape, dtype=entry.dtype, role=entry.role, read=read)

    @property
    def entry(self) -> Entry:
        """The tensor without its values."""
        return Entry(name=self.name, shape=self.shape, dtype=self.dtype, role=self.role or Role.OTHER)


def dense_tensor(data: FileBytes, dtype: str, shape: Sequence[object], what: str = "a tensor") -> LazyTensor:
    """Describe a tensor whose elements fill `data` in order; raises a `ValueError` if they do not."""
    sizes = parse_shape(shape, what)
    if dtype not in NUM_BYTES:
        raise ValueError(f"{what} has the unknown dtype {dtype[:40]!r}")
    if (needed := math.prod(sizes) * NUM_BYTES[dtype]) != len(data):
        raise ValueError(f"{what} of shape {list(sizes)} and dtype {dtype} needs {needed} bytes but has {len(data)}")
    return LazyTensor(shape=sizes, dtype=dtype, read=lambda: read_flat(data, dtype).reshape(sizes))


def read_flat(data: FileBytes, dtype: str) -> Tensor:
    """Read bytes as a flat tensor; raises a `CheckpointError` if that fails, or there is no memory for them."""
    import torch

    torch_dtype: torch.dtype = getattr(torch, dtype)
    if not len(data):
        return torch.empty(0, dtype=torch_dtype)
    try:
        memory = np.empty(len(data), np.uint8)  # on Linux numpy's has large pages, which are faster to fill
    except MemoryError as error:
        raise data.error(f"there is no memory for a tensor of {len(data)} bytes", at=0) from error
    data.read_into(memory.data)
    return torch.frombuffer(memory, dtype=torch_dtype)


def join_parts(parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the tensor whose elements are those of the parts, one after the other."""
    import torch

    return torch.cat([part.reshape(-1) for part in parts]).reshape(shape)


class Checkpoint:
    """The tensors of a checkpoint by name, and its other contents.

    Tensors have the layout of the file: Keras and Flax store (in, out) and HWIO. Each is read into memory of
    its own when it is requested. If the file became shorter since it was opened, that is an error.
    """

    def __init__(
        self,
        *,
        path: Path,
        format: str,
        tensors: Iterable[StoredTensor],
        settings: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.path = path
        self.format = format
        """torch-zip, torch-legacy, torch-distributed, safetensors, npz, mindspore, paddle, keras or flax."""
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.entries: Mapping[str, Entry] = {name: tensor.entry for name, tensor in self._tensors.items()}
        self.settings: Mapping[str, JsonValue] = settings or {}
        """Everything that is not a tensor (epoch, learning rate, ...) under dotted names; long values are truncated."""

    def tensor(self, name: str) -> Tensor:
        """Read one tensor; raises a `CheckpointError` if the name is unknown, or its bytes are broken."""
        if name not in self._tensors:
            raise CheckpointError.explain(
                f"'{self.path}' has no tensor '{name}'.", fix=f"list its tensors: roundoff params {self.path}"
            )
        return self._tensors[name].read()

    def close(self) -> None:
        """Release the file; tensors that were read stay valid."""
        self._tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
