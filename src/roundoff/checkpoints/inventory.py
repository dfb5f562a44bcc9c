"""Lists the tensors of a checkpoint or a model with statistics, and which of them are not finite or all zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import TYPE_CHECKING

from roundoff.checkpoints.checkpoint import NUM_BYTES, Checkpoint, Entry, JsonValue, Role
from roundoff.kernels import row

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryItem:
    """One tensor with the statistics of its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    """A role (parameter, buffer, optimizer, other); in a model trainable, frozen or buffer."""
    num_bytes: int
    num_nan: int = 0
    num_inf: int = 0
    """Of both signs."""
    num_negative_inf: int = 0
    is_zero: bool = False
    """Whether it has elements and all of them are zero."""
    mean: float | None = None
    """None, like std, min and max, where there are no values: empty tensors, models on the meta device."""
    std: float | None = None
    min: float | None = None
    max: float | None = None

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_finite(self) -> bool:
        """Whether it has neither NaN nor infinity."""
        return not self.num_nan and not self.num_inf

    @property
    def is_broken(self) -> bool:
        """Whether it has NaN or infinity where that is an error.

        A buffer may be a mask of zeros and -inf, and a tensor outside the model may be a best loss initialised to
        infinity.
        """
        if self.kind == Role.OTHER:
            return False
        num_right = self.num_negative_inf if self.kind == Role.BUFFER else 0
        return self.num_nan + self.num_inf > num_right


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All tensors and settings of a checkpoint or a model."""

    source: str
    format: str
    """The format of the file, or "model"."""
    items: tuple[InventoryItem, ...]
    settings: dict[str, JsonValue]
    has_values: bool = True
    """Whether the values were looked at, which takes torch; names, shapes and dtypes do not."""

    def only(self, pattern: str) -> Inventory:
        """Return the items whose names match a pattern, in which * matches anything."""
        kept = tuple(item for item in self.items if fnmatchcase(item.name, pattern))
        return replace(self, items=kept)


def take_inventory(checkpoint: Checkpoint) -> Inventory:
    """Summarize every tensor of a checkpoint, one after the other; without torch only what the file says of them."""
    has_values = find_spec("torch") is not None
    items = (
        _item(entry.name, checkpoint.tensor(entry.name), kind=entry.role) if has_values else _unread_item(entry)
        for entry in checkpoint.entries.values()
    )
    return Inventory(
        source=str(checkpoint.path),
        format=checkpoint.format,
        items=tuple(items),
        settings=dict(checkpoint.settings),
        has_values=has_values,
    )


def take_model_inventory(models: Iterable[nn.Module], *, source: str) -> Inventory:
    """Summarize every parameter and buffer of one or more models; names of several models are numbered."""
    models = tuple(models)
    items = []
    for place, model in enumerate(models):
        prefix = f"{place}." if len(models) > 1 else ""
        for name, parameter in model.named_parameters():
            kind = "trainable" if parameter.requires_grad else "frozen"
            items.append(_item(f"{prefix}{name}", parameter.detach(), kind=kind))
        items += [_item(f"{prefix}{name}", buffer, kind=Role.BUFFER) for name, buffer in model.named_buffers()]
    return Inventory(source=source, format="model", items=tuple(items), settings={})


def _unread_item(entry: Entry) -> InventoryItem:
    num_bytes = math.prod(entry.shape) * NUM_BYTES[entry.dtype]
    return InventoryItem(
        name=entry.name, shape=entry.shape, dtype=entry.dtype, kind=str(entry.role), num_bytes=num_bytes
    )


def _item(name: str, tensor: Tensor, *, kind: str) -> InventoryItem:
    import torch

    from roundoff.kernels import summarize

    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    num_bytes = tensor.numel() * tensor.element_size()
    if tensor.is_meta or not tensor.numel():
        return InventoryItem(name=name, shape=shape, dtype=dtype, kind=str(kind), num_bytes=num_bytes)
    numbers = summarize(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
    num_nan = int(numbers[row.NUM_NAN])
    num_inf = int(numbers[row.NUM_POSINF] + numbers[row.NUM_NEGINF])
    num_numbers = tensor.numel() * (2 if tensor.is_complex() else 1)
    num_finite = num_numbers - num_nan - num_inf
    mean = numbers[row.SUM] / num_finite if num_finite else math.nan
    variance = numbers[row.SUM_SQUARES] / num_finite - mean**2 if num_finite else math.nan
    return InventoryItem(
        name=name,
        shape=shape,
        dtype=dtype,
        kind=str(kind),
        num_bytes=num_bytes,
        num_nan=num_nan,
        num_inf=num_inf,
        num_negative_inf=int(numbers[row.NUM_NEGINF]),
        is_zero=int(numbers[row.NUM_ZERO]) == num_numbers,
        mean=float(mean),
        std=math.sqrt(max(0.0, variance)) if num_finite else math.nan,
        min=float(numbers[row.MIN]),
        max=float(numbers[row.MAX]),
    )
