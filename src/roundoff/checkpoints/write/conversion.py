"""Plans a conversion: the names, axes and dtypes of the tensors to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import Checkpoint, Entry, Role, StoredTensor
from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.checkpoints.pair.pairing import Pairing, TensorPair, pair_checkpoints
from roundoff.checkpoints.write.checkpoint_writer import Target
from roundoff.checkpoints.write.foreign_names import ForeignNames, counter_like
from roundoff.errors import CheckpointError
from roundoff.words import plural

MAX_NAMED = 5
GUESSED = (PairedBy.SHAPE, PairedBy.EDIT_DISTANCE, PairedBy.POSITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan:
    """The tensors to write, and notes about them for the user."""

    tensors: Sequence[StoredTensor]
    notes: Sequence[str]


def plan_conversion(
    source: Checkpoint, *, target: Target, like: Checkpoint | None = None, name_map: Mapping[str, str] | None = None
) -> ConversionPlan:
    """Return the tensors to write for `source` in another format.

    Args:
        source: the checkpoint to convert.
        target: the format. Without `like`, names and layouts are those of its framework; safetensors and npz use
            PyTorch's.
        like: a checkpoint of the target model, whose names, shapes and dtypes are used, not its values.
        name_map: names of `source` and their new names; `a.* = b.*` maps all names with this prefix.

    Raises:
        CheckpointError: `like` or the map has a name that `source` does not have, or there is nothing to write.
    """
    if not source.entries:
        raise CheckpointError.explain(
            f"'{source.path}' has no tensors.",
            why="there is nothing to convert.",
            fix="save the model's state_dict and convert that.",
        )
    plan = _alone(source, target, name_map or {}) if like is None else _like(source, like, name_map or {})
    tensors = [_storable(stored, target) for stored in plan.tensors]
    widened = sum(old is not new for old, new in zip(plan.tensors, tensors, strict=True))
    note = f"widened to float32, because numpy has no bfloat16 and no float8: {_tensors(widened)}"
    return ConversionPlan(tensors=tensors, notes=[*plan.notes, note] if widened else plan.notes)


def _alone(source: Checkpoint, target: Target, name_map: Mapping[str, str]) -> ConversionPlan:
    words = ForeignNames(source, target=target, name_map=name_map)
    planned = {name: words.stored(entry) for name, entry in source.entries.items()}
    left = [name for name, stored in planned.items() if stored is None]
    note = f"left out, because the target has no equivalent: {_tensors(len(left), left[0])}" if left else ""
    tensors = [stored for stored in planned.values() if stored is not None]
    return ConversionPlan(tensors=[*tensors, *words.counters()], notes=[note] if note else [])


def _like(source: Checkpoint, like: Checkpoint, name_map: Mapping[str, str]) -> ConversionPlan:
    found = pair_checkpoints(
        like.entries,
        source.entries,
        reference_format=like.format,
        candidate_format=source.format,
        name_map={target: name for name, target in name_map.items()},
    )
    missing = [each for each in found.only_reference if each.matters]
    if missing:
        shown = "; ".join(f"'{each.name}': {each.why}" for each in missing[:MAX_NAMED])
        raise CheckpointError.explain(
            f"'{source.path}' lacks {len(missing)} tensors of '{like.path}'.",
            why=f"{shown}.",
            fix="name them with --map, or use another --like.",
        )
    stored = {each.reference: _lay_out(source, like.entries[each.reference], each) for each in found.pairs}
    for each in found.only_reference:
        made = counter_like(like.entries[each.name], source)
        if made is not None:
            stored[each.name] = made
    notes = _notes(found, without=len(like.entries) - len(stored))
    return ConversionPlan(tensors=[stored[name] for name in like.entries if name in stored], notes=notes)


def _lay_out(source: Checkpoint, wanted: Entry, pair: TensorPair) -> StoredTensor:
    dtype: torch.dtype = getattr(torch, wanted.dtype)

    def read() -> Tensor:
        tensor = source.tensor(pair.candidate)
        laid = (tensor if pair.axes is None else tensor.permute(pair.axes)).reshape(wanted.shape)
        return _cast(laid, dtype, pair.candidate)

    return StoredTensor(entry=wanted, read=read)


def _cast(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    cast = tensor.to(dtype)
    is_narrower = dtype.is_floating_point and tensor.is_floating_point() and dtype.itemsize < tensor.dtype.itemsize
    lost = int((~torch.isfinite(cast.float()) & torch.isfinite(tensor)).sum()) if is_narrower else 0
    if lost:
        raise CheckpointError.explain(
            f"'{name}' does not fit into {str(dtype).removeprefix('torch.')}.",
            why=f"{lost} of its values would no longer be finite.",
            fix="use a --like with a wider dtype, or none.",
        )
    return cast


def _notes(found: Pairing, *, without: int) -> list[str]:
    guessed = [each for each in found.pairs if each.by in GUESSED]
    turned = [each.candidate for each in found.pairs if not each.is_expected]
    left = [each for each in found.only_candidate if each.role is not Role.OTHER]
    notes = []
    if guessed:
        first = f"'{guessed[0].candidate}' as '{guessed[0].reference}'"
        notes.append(f"matched by shape or order only: {_tensors(len(guessed))} ({first}); check them, or use --map")
    if turned:
        notes.append(f"permuted only because of their shapes: {_tensors(len(turned), turned[0])}")
    if left:
        notes.append(f"left out, because --like does not have them: {_tensors(len(left), left[0].name)}")
    if without:
        notes.append(f"not written, because the source does not have them (no weights): {_tensors(without)}")
    return notes


def _tensors(count: int, first: str | None = None) -> str:
    """Write a count of tensors, and the name of the first.

    >>> _tensors(1), _tensors(3, "fc.bias")
    ('1 tensor', "3 tensors ('fc.bias', ...)")
    """
    text = plural(count, "tensor")
    return text if first is None else f"{text} ('{first}'{', ...' if count > 1 else ''})"


def _storable(stored: StoredTensor, target: Target) -> StoredTensor:
    """Widen dtypes that the format does not have."""
    if target != "npz" or not stored.entry.dtype.startswith(("bfloat", "float8")):
        return stored
    return StoredTensor(entry=replace(stored.entry, dtype="float32"), read=lambda: stored.read().float())
