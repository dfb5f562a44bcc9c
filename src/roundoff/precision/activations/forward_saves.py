"""Compresses what autograd saves during one forward, each piece of memory once; weights are not compressed."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef

from roundoff.kernels.group_codes import GroupCodes, compress_groups, expand_groups, pack_bits, unpack_bits
from roundoff.kernels.random_numbers import splitmix64
from roundoff.precision.activations.activation_settings import UNCOMPRESSED, ActivationSettings

_MAX_NODES: Final = 16
"""A weight is only a few operations away from its parameters."""


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
class PackedTensor:
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


class WeightFinder:
    """Recognises weights among the tensors that autograd saves.

    A tensor is a weight if it shares the memory of a parameter or buffer, or is as large as a parameter and computed
    from parameters only: cast by autocast, normalised, rounded. Compressed weights would harm all gradients below them,
    and parameters stay in memory anyway.
    """

    def __init__(self, model: nn.Module, *, min_elements: int) -> None:
        tensors = list(itertools.chain(model.parameters(), model.buffers()))
        # While a weak reference exists, the address is not reused.
        refs = [StorageWeakRef(t.untyped_storage()) for t in tensors if _has_storage(t)]
        self._storages = {ref.cdata: ref for ref in refs}
        # Small tensors are never compressed, and the statistics of a norm have the shape of its parameters.
        large = [t for t in tensors if t.numel() >= min_elements]
        self._numels = {t.numel() for t in large}
        self._shapes = {tuple(sorted(t.shape)) for t in large}
        self._dtypes = {t.dtype for t in large}

    def include(self, x: Tensor, storage: StorageWeakRef) -> bool:
        """Return whether `x`, whose memory is `storage`, is a weight."""
        if storage.cdata in self._storages or is_parameter(x):
            return True
        if x.numel() not in self._numels or not x.is_floating_point():
            return False
        if x.grad_fn is None:  # a frozen parameter, cast by autocast
            return tuple(sorted(x.shape)) in self._shapes and x.dtype not in self._dtypes
        return _comes_from_parameters(x.grad_fn, x.numel())


def _comes_from_parameters(node: Any, numel: int) -> bool:
    """Return whether all paths up the graph end in parameters, one of which has `numel` elements.

    An input without gradient is a batch, except that of a `torch.autograd.Function`, which may be the scale of a
    rounded weight.
    """
    nodes, num_seen, is_as_large = [node], 0, False
    while nodes:
        node = nodes.pop()
        num_seen += 1
        if num_seen > _MAX_NODES:
            return False
        variable = getattr(node, "variable", None)
        if variable is not None:
            if not isinstance(variable, nn.Parameter):
                return False
            is_as_large |= variable.numel() == numel
        above = [node for node, _ in node.next_functions]
        if None in above and not isinstance(node, BackwardCFunction):
            return False
        nodes += [node for node in above if node is not None]
    return is_as_large


def is_parameter(x: Tensor) -> bool:
    """Return whether `x` is a parameter, or a view of one."""
    return isinstance(x if x._base is None else x._base, nn.Parameter)


def _has_storage(x: Tensor) -> bool:
    try:
        x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and subclasses without storage
        return False
    return True


_FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16))
_LARGEST_SHARE = 4
"""A view is stored together with the whole storage it belongs to if that is at most this many times as large."""


@dataclass(slots=True, kw_only=True)
class SavedTally:
    """What one site has saved so far."""

    num_tensors: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(slots=True, kw_only=True)
class _Known:
    """A saved storage and its forms by version and part; while it is referenced, its address is not reused."""

    storage: StorageWeakRef
    forms: dict[tuple[object, ...], weakref.ref[StoredForm]] = field(default_factory=dict)


class ForwardSaves:
    """The saved tensors of one forward: `pack` returns what autograd holds instead of a tensor."""

    def __init__(self, model: nn.Module, *, settings: ActivationSettings, bits: Mapping[str, int], key: int) -> None:
        self.tallies: dict[str, SavedTally] = {}
        self._settings = settings
        self._bits = bits
        self._key = key
        self._weights = WeightFinder(model, min_elements=settings.min_elements)
        self._known: dict[int, _Known] = {}

    def pack(self, x: Tensor, *, site: str) -> PackedTensor:
        """Compress `x`, or keep it; `site` is the site that saves it."""
        if type(x) not in (Tensor, nn.Parameter) or x.layout != torch.strided:
            if not is_parameter(x):
                size = x.numel() * x.element_size()
                self._count(site, before=size, after=size)
            return _pack_alone(UncompressedTensor(tensor=x.detach(), version=x._version), x)
        storage = StorageWeakRef(x.untyped_storage())
        if self._weights.include(x, storage):
            return _pack_alone(UncompressedTensor(tensor=x.detach(), version=x._version), x)
        known = self._known.setdefault(storage.cdata, _Known(storage=storage))
        whole = (x._version, x.dtype)
        part = (*whole, x.storage_offset(), x.shape, x.stride())
        for place in (whole, part):
            reference = known.forms.get(place)
            form = None if reference is None else reference()
            if form is not None:
                return _pack_alone(form, x) if place is part else _pack_part(form, x)
        is_whole = _fills_storage(x)
        form = self._form_of(_storage_of(x) if is_whole else x, like=x, bits=self._bits[site])
        known.forms[whole if is_whole else part] = weakref.ref(form)
        before = x.untyped_storage().nbytes() if is_whole else x.numel() * x.element_size()
        self._count(site, before=before, after=form.num_bytes)
        return _pack_part(form, x) if is_whole else _pack_alone(form, x)

    def forget(self) -> None:
        """End the forward: memory that was saved in it is not recognised any more."""
        self._known.clear()

    def _form_of(self, values: Tensor, *, like: Tensor, bits: int) -> StoredForm:
        if bits == UNCOMPRESSED or values.numel() < self._settings.min_elements:
            return _keep_uncompressed(values)
        if values.dtype in _FLOATS:
            self._key = splitmix64(self._key)
            group = self._settings.group or group_size(like)
            return Codes(groups=compress_groups(values, bits=bits, group=group, key=self._key))
        flat = values.detach().contiguous().view(-1)
        if values.dtype == torch.bool:
            return mask_of(flat)
        return (narrow_integers(flat) if values.dtype in _INTEGERS else None) or _keep_uncompressed(values)

    def _count(self, site: str, *, before: int, after: int) -> None:
        tally = self.tallies.setdefault(site, SavedTally())
        tally.num_tensors += 1
        tally.bytes_before += before
        tally.bytes_after += after


def _keep_uncompressed(x: Tensor) -> UncompressedTensor:
    """Keep `x`, or a copy if `x` would keep a much larger storage alive."""
    size = x.numel() * x.element_size()
    kept = x.detach()
    if x.untyped_storage().nbytes() > _LARGEST_SHARE * size:
        kept = kept.clone()
    return UncompressedTensor(tensor=kept, version=kept._version)


def _pack_alone(form: StoredForm, x: Tensor) -> PackedTensor:
    return PackedTensor(form=form, shape=x.shape, stride=None, offset=0)


def _pack_part(form: StoredForm, x: Tensor) -> PackedTensor:
    return PackedTensor(form=form, shape=x.shape, stride=x.stride(), offset=int(x.storage_offset()))


def _fills_storage(x: Tensor) -> bool:
    """Return whether to store the whole storage of `x`, so that other views can share it."""
    if x.is_conj() or x.is_neg():
        return False
    return x.untyped_storage().nbytes() <= _LARGEST_SHARE * x.numel() * x.element_size()


def _storage_of(x: Tensor) -> Tensor:
    """Return the storage of `x` as a flat tensor that shares its version."""
    num_values = x.untyped_storage().nbytes() // x.element_size()
    return x.detach().as_strided((num_values,), (1,), 0)
