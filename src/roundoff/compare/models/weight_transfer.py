"""The weights of one model put into another, by the pairing that lines checkpoints up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.layer_groups import Axes
from roundoff.checkpoints.pair.pairing import TensorPair, pair_checkpoints
from roundoff.errors import CheckpointError, CompareError, first_line

Tensors: TypeAlias = dict[str, tuple[Tensor, Role]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTransfer:
    """What was put where."""

    pairs: tuple[tuple[str, str], ...]
    """Names in the reference and in the candidate."""
    transposed: tuple[tuple[str, str], ...]
    """Those of them whose axes had to change."""
    only_reference: tuple[str, ...]
    only_candidate: tuple[str, ...]
    changed: bool
    """Whether the candidate held other values before."""

    @property
    def sites(self) -> dict[str, str]:
        """What modules of the reference are called in the candidate, where that is something else."""
        modules = ((reference.rpartition(".")[0], candidate.rpartition(".")[0]) for reference, candidate in self.pairs)
        return {
            reference: candidate
            for reference, candidate in modules
            if reference and candidate and reference != candidate
        }


def transfer_weights(
    reference: nn.Module, candidate: nn.Module, *, name_map: Mapping[str, str] | None = None
) -> WeightTransfer:
    """Overwrite the candidate's parameters and buffers with the reference's, as far as they line up."""
    reference_tensors, candidate_tensors = _tensors(reference), _tensors(candidate)
    try:
        found = pair_checkpoints(_entries(reference_tensors), _entries(candidate_tensors), name_map=name_map)
    except CheckpointError as error:
        raise CompareError.explain("The models do not line up by this map.", why=first_line(error)) from error
    axes = _axes(found.pairs, reference_tensors, candidate_tensors, candidate)
    changed = False
    with torch.no_grad():
        for each in found.pairs:
            target = candidate_tensors[each.candidate][0]
            value = _lay_out(reference_tensors[each.reference][0], target, axes[each.candidate])
            changed = changed or not torch.equal(target, value)
            target.copy_(value)
    return WeightTransfer(
        pairs=tuple((each.reference, each.candidate) for each in found.pairs),
        transposed=tuple((each.reference, each.candidate) for each in found.pairs if axes[each.candidate] is not None),
        only_reference=tuple(left.name for left in found.only_reference),
        only_candidate=tuple(left.name for left in found.only_candidate),
        changed=changed,
    )


def _tensors(model: nn.Module) -> Tensors:
    """Return what a model holds by name, without buffers that it would not save: those are made, not learned."""
    kept = model.state_dict(keep_vars=True)
    parameters = {name: (x.detach(), Role.PARAMETER) for name, x in model.named_parameters()}
    buffers = {name: (x, Role.BUFFER) for name, x in model.named_buffers() if name in kept}
    return {**parameters, **buffers}


def _entries(tensors: Tensors) -> dict[str, Entry]:
    return {
        name: Entry(name=name, shape=tuple(x.shape), dtype=str(x.dtype).removeprefix("torch."), role=role)
        for name, (x, role) in tensors.items()
    }


def _axes(
    pairs: Sequence[TensorPair], reference_tensors: Tensors, candidate_tensors: Tensors, candidate: nn.Module
) -> dict[str, Axes | None]:
    """Return for each of the candidate's tensors the axes that lead to the reference's layout.

    A square weight looks right either way round: it goes as the other weights of its kind of layer do.
    """
    kinds = {each.candidate: _kind(candidate, each.candidate) for each in pairs}
    turned = {kinds[each.candidate]: each.axes for each in pairs if each.axes is not None}
    found = {each.candidate: each.axes for each in pairs}
    for each in pairs:
        shape, other = reference_tensors[each.reference][0].shape, candidate_tensors[each.candidate][0].shape
        axes = turned.get(kinds[each.candidate])
        if axes == (1, 0) and len(shape) == len(other) == 2 and shape[0] == shape[1]:
            found[each.candidate] = axes
    return found


def _kind(model: nn.Module, name: str) -> tuple[type[nn.Module], str]:
    """Return the class that owns a tensor, and the tensor's own name in it."""
    owner, _, leaf = name.rpartition(".")
    return type(model.get_submodule(owner)), leaf


def _lay_out(value: Tensor, target: Tensor, axes: Axes | None) -> Tensor:
    """Return the reference's tensor in the candidate's layout; the axes lead from there to the reference's."""
    value = value.to(dtype=target.dtype, device=target.device)
    if axes is None:
        return value.reshape(target.shape)
    moved = value.reshape([target.shape[axis] for axis in axes])
    return moved.permute(sorted(range(len(axes)), key=axes.__getitem__))
