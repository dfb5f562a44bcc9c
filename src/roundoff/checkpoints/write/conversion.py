"""Plans a conversion: the names, axes and dtypes of the tensors to write, also without an example of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import Checkpoint, Entry, Role, StoredTensor
from roundoff.checkpoints.pair.layer_groups import UNCOUNTED, Axes, CheckpointLayer, layers_of, read_optimizer_name
from roundoff.checkpoints.pair.pairing import WEIGHTS, Pairing, TensorPair, pair_checkpoints
from roundoff.checkpoints.write.checkpoint_writer import Target
from roundoff.errors import CheckpointError
from roundoff.words import plural

STEPS = frozenset({"global_step", "step", "iteration", "iterations", "count"})
BETA_POWERS = {"beta1_power": 0, "beta2_power": 1}
"""MindSpore's Adam stores the power of each beta instead of the step."""


MAX_NAMED = 5


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
    names = ForeignNames(source, target=target, name_map=name_map)
    planned = {name: names.tensor_for(entry) for name, entry in source.entries.items()}
    left = [name for name, stored in planned.items() if stored is None]
    note = f"left out, because the target has no equivalent: {_tensors(len(left), left[0])}" if left else ""
    tensors = [stored for stored in planned.values() if stored is not None]
    return ConversionPlan(tensors=[*tensors, *names.counters()], notes=[note] if note else [])


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

    return StoredTensor.of(wanted, read)


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
    guessed = [each for each in found.pairs if each.by.is_guess]
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
    if target != "npz" or not stored.dtype.startswith(("bfloat", "float8")):
        return stored
    return replace(stored, dtype="float32", read=lambda: stored.read().float())


OF_NORMS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


SLOTS_OF_MINDSPORE = {
    "exp_avg": "moment1",
    "exp_avg_sq": "moment2",
    "momentum_buffer": "moments",
    "max_exp_avg_sq": "vhat",
    "square_avg": "mean_square",
    "grad_avg": "mean_grad",
    "exp_inf": "moment2",
    "sum": "accum",
    "acc_delta": "accum_update",
    "prev": "prev",
    "step_size": "step_size",
}
"""The names of the states of `nn.Adam`, `nn.AdaMax`, `nn.Momentum`, `nn.RMSProp`, `nn.Adagrad`, `nn.Adadelta` and
`nn.Rprop`."""


HAVE_TORCH_NAMES = ("torch", "safetensors", "npz")


class ForeignNames:
    """The names and axes of a checkpoint's tensors in the target framework."""

    def __init__(self, source: Checkpoint, *, target: Target, name_map: Mapping[str, str]) -> None:
        self._source = source
        self._is_mindspore = target == "mindspore"
        self._name_map = name_map
        weights = [entry for entry in source.entries.values() if entry.role in WEIGHTS]
        self._parameters = [entry.name for entry in weights if entry.role is Role.PARAMETER]
        self._names: dict[str, str] = {}
        self._axes: dict[str, Axes | None] = {}
        for layer in layers_of(weights, format=source.format):
            for leaf, entry in layer.tensors.items():
                word = mindspore_leaf(layer, leaf) if self._is_mindspore else leaf
                if word is not None:
                    self._names[entry.name] = self._rename(entry.name, word)
                    self._axes[entry.name] = layer.axes[leaf]
        self._check_map()

    def tensor_for(self, entry: Entry) -> StoredTensor | None:
        """Return a tensor as the target stores it, or None if the target does not have it."""
        name, owner = self._name(entry)
        if name is None:
            return None
        axes = self._axes.get(owner)
        if axes is None or len(axes) != len(entry.shape):
            return StoredTensor.of(replace(entry, name=name), lambda: self._source.tensor(entry.name))
        shape = tuple(entry.shape[axis] for axis in axes)

        def read() -> Tensor:
            return self._source.tensor(entry.name).permute(axes)

        return StoredTensor.of(replace(entry, name=name, shape=shape), read)

    def counters(self) -> list[StoredTensor]:
        """Return the counters that only the target has."""
        step = step_of(self._source)
        if step is None:
            return []
        return self._counters_of_mindspore(step) if self._is_mindspore else self._counters_of_torch(step)

    def _counters_of_mindspore(self, step: int) -> list[StoredTensor]:
        made = [one_number("global_step", step, dtype="int32", shape=(1,), role=Role.OTHER)]
        betas = betas_of(self._source)
        is_adamax = any(name.endswith(".exp_inf") for name in self._source.entries)
        for name, place in BETA_POWERS.items():
            if betas is not None and not (is_adamax and place == 1):
                shape = (1,) if is_adamax else ()
                made.append(one_number(name, betas[place] ** step, dtype="float32", shape=shape, role=Role.OTHER))
        return [stored for stored in made if stored.name not in self._source.entries]

    def _counters_of_torch(self, step: int) -> list[StoredTensor]:
        if self._source.format.startswith(HAVE_TORCH_NAMES):
            return []
        norms = [name for name in self._names.values() if name.rpartition(".")[2] == "running_mean"]
        made = [
            one_number(_with_leaf(name, UNCOUNTED), step, dtype="int64", shape=(), role=Role.BUFFER) for name in norms
        ]
        states = [self._name(entry)[0] for entry in self._source.entries.values() if entry.role is Role.OPTIMIZER]
        owners = dict.fromkeys(name.rpartition(".")[0] for name in states if name)
        return made + [
            one_number(f"{owner}.step", step, dtype="float32", shape=(), role=Role.OPTIMIZER) for owner in owners
        ]

    def _name(self, entry: Entry) -> tuple[str | None, str]:
        """Return the name in the target, and the parameter whose axes it has."""
        if entry.role in WEIGHTS:
            return self._names.get(entry.name), entry.name
        if entry.role is Role.OPTIMIZER:
            return self._state_name(entry)
        is_kept = self._is_mindspore or self._source.format.startswith(HAVE_TORCH_NAMES)
        return (entry.name if is_kept else None), entry.name

    def _state_name(self, entry: Entry) -> tuple[str | None, str]:
        read = read_optimizer_name(entry.name, parameters=self._parameters, others=self._source.entries)
        if read is None or read.owner not in self._names:
            return None, entry.name
        if not self._is_mindspore:
            return f"optimizer.state.{self._parameters.index(read.owner)}.{read.slot}", read.owner
        slot = SLOTS_OF_MINDSPORE.get(read.slot)
        beside = f"{entry.name.rpartition('.')[0]}."
        if read.slot == "square_avg" and f"{beside}acc_delta" in self._source.entries:
            slot = "accum"  # of `nn.Adadelta`
        if read.slot == "momentum_buffer" and f"{beside}square_avg" in self._source.entries:
            slot = None  # the momentum of `nn.RMSProp` contains the learning rate
        return (f"{slot}.{self._names[read.owner]}" if slot else None), read.owner

    def _rename(self, name: str, word: str) -> str:
        if name in self._name_map:
            return self._name_map[name]
        for left, right in self._name_map.items():
            if left.endswith("*") and right.endswith("*") and name.startswith(left[:-1]):
                return _with_leaf(right[:-1] + name[len(left) - 1 :], word)
        return _with_leaf(name, word)

    def _check_map(self) -> None:
        for left in self._name_map:
            if not any(name == left or (left.endswith("*") and name.startswith(left[:-1])) for name in self._names):
                raise CheckpointError.explain(
                    f"The map names '{left}', which '{self._source.path}' does not have.",
                    fix=f"use names that `roundoff params {self._source.path}` prints.",
                )
        names = list(self._names.values())
        twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
        if twice:
            raise CheckpointError.explain(
                f"Two tensors would have the name '{twice[0]}'.", fix="rename one with --map."
            )


def mindspore_leaf(layer: CheckpointLayer, leaf: str) -> str | None:
    """Return MindSpore's name of a layer's tensor; None if it does not have it.

    A layer whose weight is a vector counts as a norm, and a matrix without a bias in a layer called `emb...` as an
    embedding, because PyTorch's names do not show it.
    """
    if leaf == UNCOUNTED:
        return None
    is_norm = "weight" not in layer.tensors or len(layer.tensors["weight"].shape) == 1
    if is_norm and leaf in OF_NORMS:
        return OF_NORMS[leaf]
    is_table = "emb" in ".".join(layer.path).lower() and "bias" not in layer.tensors
    return "embedding_table" if leaf == "weight" and is_table and len(layer.tensors[leaf].shape) == 2 else leaf


def _with_leaf(name: str, leaf: str) -> str:
    path, dot, _ = name.rpartition(".")
    return f"{path}{dot}{leaf}"


def step_of(source: Checkpoint) -> int | None:
    """Return the number of optimizer steps, if the checkpoint has it."""
    for entry in source.entries.values():
        is_counter = entry.role in (Role.OPTIMIZER, Role.OTHER) and torch.Size(entry.shape).numel() == 1
        if is_counter and entry.name.rpartition(".")[2] in STEPS:
            return int(source.tensor(entry.name).reshape(()).item())
    for name, value in source.settings.items():
        if name.rpartition(".")[2] in STEPS and isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def betas_of(source: Checkpoint) -> tuple[float, float] | None:
    """Return Adam's betas, if a PyTorch checkpoint has them."""
    match source.settings.get("optimizer.param_groups.0.betas"):
        case [float() as first, float() as second]:
            return first, second
    return None


def one_number(name: str, value: float, *, dtype: str, shape: tuple[int, ...], role: Role) -> StoredTensor:
    """Return a tensor with one value."""
    read = partial(torch.full, shape, value, dtype=getattr(torch, dtype))
    return StoredTensor(name=name, shape=shape, dtype=dtype, role=role, read=read)


def counter_like(wanted: Entry, source: Checkpoint) -> StoredTensor | None:
    """Derive a counter that only the other side has from the source; None if that is impossible.

    Batches are counted as steps: a trained norm sees one batch per step. Without a known step they are 0, as in a new
    norm.
    """
    step = step_of(source)
    last = wanted.name.rpartition(".")[2]
    betas = betas_of(source)
    value: float | None = None
    if last == UNCOUNTED:
        value = step or 0
    elif last in STEPS and step is not None:
        value = step
    elif last in BETA_POWERS and betas is not None and step is not None:
        value = betas[BETA_POWERS[last]] ** step
    if value is None:
        return None
    return one_number(wanted.name, value, dtype=wanted.dtype, shape=wanted.shape, role=wanted.role)
