"""The forms in which a saved tensor is stored: codes, one bit per value, narrower integers, or uncompressed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from roundoff.kernels.group_codes import GroupCodes, expand_groups
from roundoff.kernels.packing import pack_bits, unpack_bits


class StoredForm(Protocol):
    """Values stored for backward."""

    @property
    def num_bytes(self) -> int:
        """The size in memory."""

    def expand(self) -> Tensor:
        """Return the values as a flat tensor (`UncompressedTensor`: the tensor itself)."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Codes:
    """Floating-point values in groups of few bits."""

    groups: GroupCodes

    @property
    def num_bytes(self) -> int:
        """The size of codes, heads and uncompressed groups."""
        return self.groups.num_bytes

    def expand(self) -> Tensor:
        """Return the values, rounded."""
        return expand_groups(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Mask:
    """Booleans, one bit each."""

    packed: Tensor
    num_values: int

    @property
    def num_bytes(self) -> int:
        """The size of the packed bits."""
        return self.packed.numel()

    def expand(self) -> Tensor:
        """Return the booleans."""
        return unpack_bits(self.packed, num_bits=1, num_codes=self.num_values).view(torch.bool)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class NarrowIntegers:
    """Integers in the narrowest dtype that holds them all, without loss."""

    values: Tensor
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The size of the narrow integers."""
        return self.values.numel() * self.values.element_size()

    def expand(self) -> Tensor:
        """Return the integers in their original dtype."""
        return self.values.to(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class UncompressedTensor:
    """The tensor itself, and its version when it was saved."""

    tensor: Tensor
    version: int

    @property
    def num_bytes(self) -> int:
        """The size of the storage that it keeps alive."""
        return self.tensor.untyped_storage().nbytes()

    def expand(self) -> Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: it was modified in place; torch itself does not notice that for saved tensors with hooks.
        """
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.tensor.type()} {list(self.tensor.shape)}] is at version {self.tensor._version}; "
                f"expected version {self.version} instead. Hint: the backward uses the values it had in the forward; "
                "change a copy instead, or change it after the backward."
            )
        return self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """What autograd holds instead of a tensor: its place in a form that other tensors may share."""

    form: StoredForm
    shape: torch.Size
    stride: tuple[int, ...] | None  # None: the form holds this tensor alone
    offset: int

    def expand(self) -> Tensor:
        """Return a tensor like the one that was saved."""
        values = self.form.expand()
        if isinstance(self.form, UncompressedTensor) and self.stride is None:
            return values
        if self.stride is None:
            return values.view(self.shape)
        return values.as_strided(self.shape, self.stride, self.offset)


def mask_of(flat: Tensor) -> Mask:
    """Pack booleans."""
    return Mask(packed=pack_bits(flat.view(torch.uint8), num_bits=1), num_values=flat.numel())


def narrow_integers(flat: Tensor) -> NarrowIntegers | None:
    """Narrow integers; None if no narrower dtype holds them, or if measuring their range would wait for a device."""
    if not flat.is_cpu or flat.numel() == 0 or flat.element_size() == 1:
        return None
    low, high = (int(value) for value in torch.aminmax(flat))
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        info = torch.iinfo(dtype)
        if info.min <= low and high <= info.max:
            is_narrower = dtype.itemsize < flat.element_size()
            return NarrowIntegers(values=flat.to(dtype), dtype=flat.dtype) if is_narrower else None
    return None


def group_size(x: Tensor) -> int:
    """Return 256 if a channel has at least that many contiguous values, otherwise 64.

    The channel is the second dimension if there are four or more; otherwise the last dimension is used.
    """
    if x.dim() >= 4 and not x.is_contiguous():
        return 64
    run = math.prod(x.shape[2:] if x.dim() >= 4 else x.shape[-1:])
    return 256 if run >= 256 else 64
