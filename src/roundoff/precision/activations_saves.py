"""Stores what one forward saves, each piece of memory once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from roundoff.kernels.groups import compress_groups
from roundoff.kernels.tables import splitmix64
from roundoff.precision.activations_forms import Codes, Form, Kept, Saved, group_size, mask_of, narrowed
from roundoff.precision.activations_settings import UNCOMPRESSED, ActivationSettings
from roundoff.precision.activations_weights import Weights, is_parameter

_FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16))
_LARGEST_SHARE = 4
"""A view is stored with the whole memory it lies in, unless that is over so many times its size."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What one site has saved so far."""

    num_tensors: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(slots=True, kw_only=True)
class _Known:
    """A piece of memory that was saved: its forms by version and part; watched, so that its address stays its own."""

    storage: StorageWeakRef
    forms: dict[tuple[object, ...], weakref.ref[Form]] = field(default_factory=dict)


class ForwardSaves:
    """The saved tensors of one forward: `pack` gives what autograd is to hold instead of a tensor."""

    def __init__(self, model: nn.Module, *, settings: ActivationSettings, bits: Mapping[str, int], key: int) -> None:
        self.tallies: dict[str, Tally] = {}
        self._settings = settings
        self._bits = bits
        self._key = key
        self._weights = Weights(model, min_elements=settings.min_elements)
        self._known: dict[int, _Known] = {}

    def pack(self, x: Tensor, *, site: str) -> Saved:
        """Compress `x`, or keep it; `site` is where it was saved."""
        if type(x) not in (Tensor, nn.Parameter) or x.layout != torch.strided:
            if not is_parameter(x):
                size = x.numel() * x.element_size()
                self._count(site, before=size, after=size)
            return _alone(Kept(tensor=x.detach(), version=x._version), x)
        storage = StorageWeakRef(x.untyped_storage())
        if self._weights.include(x, storage):
            return _alone(Kept(tensor=x.detach(), version=x._version), x)
        known = self._known.setdefault(storage.cdata, _Known(storage=storage))
        whole = (x._version, x.dtype)
        part = (*whole, x.storage_offset(), x.shape, x.stride())
        for place in (whole, part):
            reference = known.forms.get(place)
            form = None if reference is None else reference()
            if form is not None:
                return _alone(form, x) if place is part else _inside(form, x)
        is_whole = _fills_storage(x)
        form = self._form_of(_storage_of(x) if is_whole else x, like=x, bits=self._bits[site])
        known.forms[whole if is_whole else part] = weakref.ref(form)
        before = x.untyped_storage().nbytes() if is_whole else x.numel() * x.element_size()
        self._count(site, before=before, after=form.num_bytes)
        return _inside(form, x) if is_whole else _alone(form, x)

    def forget(self) -> None:
        """End the forward: what comes later is not recognised any more."""
        self._known.clear()

    def _form_of(self, values: Tensor, *, like: Tensor, bits: int) -> Form:
        if bits == UNCOMPRESSED or values.numel() < self._settings.min_elements:
            return _kept(values)
        if values.dtype in _FLOATS:
            self._key = splitmix64(self._key)
            group = self._settings.group or group_size(like)
            return Codes(groups=compress_groups(values, bits=bits, group=group, key=self._key))
        flat = values.detach().contiguous().view(-1)
        if values.dtype == torch.bool:
            return mask_of(flat)
        return (narrowed(flat) if values.dtype in _INTEGERS else None) or _kept(values)

    def _count(self, site: str, *, before: int, after: int) -> None:
        tally = self.tallies.setdefault(site, Tally())
        tally.num_tensors += 1
        tally.bytes_before += before
        tally.bytes_after += after


def _kept(x: Tensor) -> Kept:
    """Keep `x`; a copy of it if it would keep alive a memory much larger than itself."""
    size = x.numel() * x.element_size()
    kept = x.detach()
    if x.untyped_storage().nbytes() > _LARGEST_SHARE * size:
        kept = kept.clone()
    return Kept(tensor=kept, version=kept._version)


def _alone(form: Form, x: Tensor) -> Saved:
    return Saved(form=form, shape=x.shape, stride=None, offset=0)


def _inside(form: Form, x: Tensor) -> Saved:
    return Saved(form=form, shape=x.shape, stride=x.stride(), offset=int(x.storage_offset()))


def _fills_storage(x: Tensor) -> bool:
    """Say whether the whole memory that `x` lies in is to be stored with it, for other views of it to share."""
    if x.is_conj() or x.is_neg():
        return False
    return x.untyped_storage().nbytes() <= _LARGEST_SHARE * x.numel() * x.element_size()


def _storage_of(x: Tensor) -> Tensor:
    """Return the memory that `x` lies in as a flat tensor that shares its version."""
    num_values = x.untyped_storage().nbytes() // x.element_size()
    return x.detach().as_strided((num_values,), (1,), 0)
