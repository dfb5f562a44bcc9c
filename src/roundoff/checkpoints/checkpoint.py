"""An open checkpoint: its tensors by name, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from roundoff.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from roundoff.checkpoints.lazy_tensor import StoredTensor

    JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    """A JSON value; floats may be NaN or infinite."""
else:
    JsonValue = object


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
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.format = format
        """torch-zip, torch-legacy, torch-distributed, safetensors, npz, mindspore, paddle, keras or flax."""
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.entries: Mapping[str, Entry] = {name: tensor.entry for name, tensor in self._tensors.items()}
        self.settings: Mapping[str, JsonValue] = settings or {}
        """Everything that is not a tensor (epoch, learning rate, ...) under dotted names; long values are truncated."""
        self._on_close = on_close

    def tensor(self, name: str) -> Tensor:
        """Read one tensor; raises a `CheckpointError` if the name is unknown, or its bytes are broken."""
        if name not in self._tensors:
            raise CheckpointError.explain(
                f"'{self.path}' has no tensor '{name}'.", fix=f"list its tensors: roundoff params {self.path}"
            )
        return self._tensors[name].read()

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        self._tensors = {}
        if self._on_close is not None:
            self._on_close()
            self._on_close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
