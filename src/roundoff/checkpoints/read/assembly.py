"""Turns the nested data that a reader returns into a `Checkpoint`: tensors with names and roles, and settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from roundoff.checkpoints.checkpoint import Checkpoint, JsonValue, LazyTensor, Role, StoredTensor
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickled_objects import EncodedText, Global, PickledArray, PickledObject
from roundoff.checkpoints.read.torch_files import DtypeName

MAX_NODES = 300_000
MAX_DEPTH = 60
MAX_NAME = 1000
MAX_SETTINGS = 10_000
MAX_TEXT = 300
MAX_LIST = 100
_ENTRY_BYTES, _SETTING_BYTES = 1200, 200
"""What the entry of a tensor, and a setting without its text, take in memory."""

TreeKeys: TypeAlias = tuple[Any, ...]
TreePath: TypeAlias = tuple[str, ...]


def assemble(tree: Any, data: FileBytes, *, format: str, path: Path | None = None) -> Checkpoint:
    """Make a checkpoint from a tree of dicts, lists and tensors; raises a `CheckpointError` if names collide.

    `data` is the file, for error messages; `path` is what the user opened, if that is another path.
    """
    leaves = take_apart(tree, data)
    names = model_names(leaves.tensors)
    has_container = any(map(is_contained, leaves.tensors))
    every_name = frozenset(names.values())
    stored: dict[str, StoredTensor] = {}
    for keys, tensor in leaves.tensors.items():
        name = names[keys]
        if name in stored:
            raise data.error(f"two tensors have the name '{name}'")
        is_state = format in MINDSPORE_FORMATS and is_state_of_mindspore(name, every_name)
        role = Role.OPTIMIZER if is_state else role_of(keys, tensor, has_container=has_container)
        stored[name] = StoredTensor(name=name, shape=tensor.shape, dtype=tensor.dtype, role=role, read=tensor.read)
    return Checkpoint(path=path or data.path, format=format, tensors=stored.values(), settings=leaves.settings)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The contents of a checkpoint: tensors by path, in file order, and settings by dotted name."""

    tensors: dict[TreePath, LazyTensor] = field(default_factory=dict)
    settings: dict[str, JsonValue] = field(default_factory=dict)


def take_apart(tree: Any, data: FileBytes) -> Leaves:
    """Walk a tree of dicts, lists and objects; raises a `CheckpointError` if it is endless or a name is invalid."""
    leaves = Leaves()
    for path, value in _walk(tree, data):
        if isinstance(value, LazyTensor):
            data.spend(_ENTRY_BYTES + 2 * sum(len(key) for key in path if isinstance(key, str)))
            leaves.tensors[_check_path(path, data) or ("tensor",)] = value
        elif path and len(leaves.settings) < MAX_SETTINGS:
            name = _shorten(".".join(str(key)[:MAX_TEXT] for key in path))
            leaves.settings[name] = setting = plain_setting(value)
            data.spend(_SETTING_BYTES + sys.getsizeof(name) + _size_of(setting))
    return leaves


def _walk(tree: Any, data: FileBytes) -> Iterator[tuple[TreeKeys, Any]]:
    """Yield every leaf with the keys that lead to it, in file order.

    Objects inside objects have one dotted key, as in the `state_dict` of a model.
    """
    waiting: list[Iterator[tuple[TreeKeys, Any, bool]]] = [iter([((), tree, False)])]
    num_nodes = 0
    while waiting:
        if (found := next(waiting[-1], None)) is None:
            waiting.pop()
            continue
        keys, value, is_inner = found
        num_nodes += 1 + (len(value) // MAX_LIST if isinstance(value, list | tuple) else 0)
        if num_nodes > MAX_NODES or len(keys) > MAX_DEPTH or (is_inner and len(keys[-1]) > MAX_NAME):
            how = "too many" if num_nodes > MAX_NODES else "too deeply nested"
            raise data.error(f"it has {how} entries, or contains itself")
        is_object = isinstance(value, PickledObject)
        inside = _inside(value)
        if inside is None:
            yield keys, value.tensor if isinstance(value, PickledArray) and value.tensor else value
        else:
            waiting.append(_with_keys(inside, keys, is_object=is_object, is_inner=is_inner))


def _with_keys(
    inside: Iterable[tuple[Any, Any]], keys: TreeKeys, *, is_object: bool, is_inner: bool
) -> Iterator[tuple[TreeKeys, Any, bool]]:
    for key, item in inside:
        if is_object and is_inner:
            yield (*keys[:-1], f"{keys[-1]}.{key}"), item, True
        else:
            yield (*keys, key), item, is_object and isinstance(key, str)


def _inside(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the items of a container with their keys; None if the value is not a container."""
    match value:
        case PickledObject() if _is_module(value):
            return _inside_module(value)
        case PickledObject(state=dict() as state):
            return _overlay(state, value.items or {})
        case PickledObject(items=dict() as items):
            return items.items()
        case dict():
            return value.items()
        case list() | tuple() if any(isinstance(item, _CONTAINERS) for item in value):
            return enumerate(value)
    return None


def _overlay(state: dict[Any, Any], items: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the items of both; those of the second replace those of the first."""
    for key, value in state.items():
        yield key, items.get(key, value)
    for key, value in items.items():
        if key not in state:
            yield key, value


_CONTAINERS = (LazyTensor, PickledArray, PickledObject, dict, list, tuple)


def _is_module(value: PickledObject) -> bool:
    return all(isinstance(value.attribute(name), dict) for name in ("_parameters", "_buffers", "_modules"))


def _inside_module(module: PickledObject) -> Iterator[tuple[Any, Any]]:
    """Yield the contents of a pickled model in the form of its `state_dict`."""
    for held, role in (("_parameters", Role.PARAMETER), ("_buffers", Role.BUFFER)):
        for name, tensor in module.attribute(held).items():
            if isinstance(tensor, LazyTensor):
                yield name, replace(tensor, role=role)
    for name, child in module.attribute("_modules").items():
        if isinstance(child, PickledObject):
            yield name, child


def _check_path(path: tuple[Any, ...], data: FileBytes) -> TreePath:
    """Return the path of a tensor as strings; raises a `CheckpointError` if it cannot be printed or is too long."""
    for key in path:
        if type(key) is not int and not isinstance(key, str):
            raise data.error(f"a tensor has the name {_shorten(str(plain_setting(key)))}, which is not a string")
    names = tuple(str(key) for key in path)
    if sum(map(len, names)) > MAX_NAME:
        raise data.error(f"a tensor has a name of {sum(map(len, names))} characters")
    if not all(name.isprintable() for name in names) or (names and not any(names)):
        raise data.error(f"a tensor has the name {'.'.join(names)!a}, which cannot be printed")
    return names


def _size_of(setting: JsonValue) -> int:
    return sys.getsizeof(setting) + (sum(map(sys.getsizeof, setting)) if isinstance(setting, list) else 0)


def _shorten(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def plain_setting(value: Any) -> JsonValue:
    """Return a value as JSON; long strings and lists are truncated, other objects are described by their type."""
    match value:
        case None | bool() | float():
            return value
        case int():
            return value if value.bit_length() <= 64 else f"<a number of {value.bit_length()} bits>"
        case str():
            return value[:MAX_TEXT].encode("utf-8", "replace").decode()
        case list() | tuple():
            shown: list[JsonValue] = [
                plain_setting(item) for item in value[:MAX_LIST] if not isinstance(item, _CONTAINERS)
            ]
            return shown if len(value) <= MAX_LIST else [*shown, f"<{len(value) - MAX_LIST} more>"]
        case Mapping():
            return f"<a dict of {len(value)}>"
        case FileBytes() | EncodedText():
            return f"<{len(value)} bytes>"
        case DtypeName(name=name):
            return f"torch.{name}"
        case PickledObject(made_by=made_by):
            return _shorten(f"<{made_by}>")
        case Global():
            return _shorten(f"<{value}>")
        case complex():
            return str(value)
        case _:
            return f"<{type(value).__name__}>"


MODEL_CONTAINERS = frozenset(
    [
        "model",
        "state_dict",
        "module",
        "model_state_dict",
        "model_state",
        "params",
        "batch_stats",
        "model_weights",
    ]
)
"""In a checkpoint, a dict with one of these names contains the model, or a part of it."""

WRAPPERS = frozenset({"state_dict", "module", "_orig_mod"})
"""Prefixes that wrappers add to every name of a model."""

BUFFERS = frozenset(
    [
        "running_mean",
        "running_var",
        "num_batches_tracked",
        "moving_mean",
        "moving_variance",
        "moving_var",
        "_mean",
        "_variance",
        "position_ids",
        "inv_freq",
        "relative_position_index",
        "attn_mask",
        "causal_mask",
        "masked_bias",
    ]
)
"""The last part of the names of buffers."""

COUNTERS = frozenset(
    [
        "epoch",
        "epochs",
        "epoch_num",
        "step",
        "steps",
        "step_num",
        "global_step",
        "iteration",
        "iterations",
        "lr",
        "learning_rate",
        "momentum",
        "weight_decay",
        "beta1_power",
        "beta2_power",
        "loss_scale",
        "scale_sense",
        "current_iterator_step",
        "last_overflow_iterator_step",
        "best_acc",
        "seed_generator_state",
    ]
)
"""Names of single numbers outside the model."""

_AVERAGES = re.compile(r"(^|_)(ema|swa|average|averaged|teacher)(_|$)", re.IGNORECASE)
_OPTIMIZER_PART = re.compile(r"opt|optims?|(\w+_)?optimi[sz]er\w*|opt_state\w*|lr_sched\w*", re.IGNORECASE)
_OPTIMIZER_STATE = re.compile(
    r"^(moments|moment1|moment2|accum|stat|adam_m|adam_v|velocity|exp_avg|exp_avg_sq|mean_square|vhat|lamb_m|lamb_v)\."
    r"|\.[wb]_\d+_\w+_\d+$"  # Paddle's states of `linear_0.w_0`
    r"|_(velocity|moment|moment1|moment2|moment2_max|beta1_pow_acc|beta2_pow_acc|mean_square|mean_grad|momentum|inf_norm)_\d+$"
    r"|\.(exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|square_avg|acc_delta)$"
)


MINDSPORE_FORMATS = frozenset({"mindspore", "safetensors"})
_STATES_OF_MINDSPORE = re.compile(
    r"(?:(?:moments?|accum(?:_update)?|stat|mean_grad|prev|step_size|ax_)\.|(?:mu|eta)_)(?P<owner>.+)"
)
"""Words that may be layers of a model as well."""


def is_state_of_mindspore(name: str, others: Container[str]) -> bool:
    """Return whether a tensor is a state of another one, by the word that MindSpore puts before the other's name.

    >>> is_state_of_mindspore("moment.fc.weight", ["fc.weight"]), is_state_of_mindspore("moment.weight", [])
    (True, False)
    """
    found = _STATES_OF_MINDSPORE.fullmatch(name)
    return found is not None and found["owner"] in others


def model_names(paths: Iterable[TreePath]) -> dict[TreePath, str]:
    """Return the dotted name of every tensor; those of the model lose the prefixes of wrappers and containers.

    >>> model_names([("model", "module.conv.weight"), ("optimizer", "state", "0", "step")])
    {('model', 'module.conv.weight'): 'conv.weight', ('optimizer', 'state', '0', 'step'): 'optimizer.state.0.step'}
    """
    names = {path: ".".join(path) for path in paths}
    contained = {path for path in names if is_contained(path)}
    outside = {path for path, name in names.items() if is_optimizers(name) or _last(name) in COUNTERS}
    model = contained or names.keys() - outside
    short = {path: ".".join(path[1:]) if path in contained else names[path] for path in model}
    while short and (first := _common_wrapper(short.values())):
        short = {path: name.removeprefix(f"{first}.") for path, name in short.items()}
    shortened = {path: short.get(path, name) for path, name in names.items()}
    return shortened if len(set(shortened.values())) == len(names) else names


def is_contained(path: TreePath) -> bool:
    """Return whether a tensor is in a dict with the name of a model."""
    return len(path) > 1 and path[0] in MODEL_CONTAINERS


def is_outside_model(path: TreePath) -> bool:
    """Return whether a tensor is outside a model that has its own dict: a single tensor, or an average of weights."""
    return len(path) == 1 or path[0] in ("callbacks", "loops") or bool(_AVERAGES.search(path[0]))


def role_of(path: TreePath, tensor: LazyTensor, *, has_container: bool = False) -> Role:
    """Return the role of a tensor: from the file, otherwise from its name, its dtype and its place."""
    name = ".".join(path)
    last = _last(name)
    is_number = all(size == 1 for size in tensor.shape)
    if tensor.role is not None:
        return tensor.role
    if is_optimizers(name):
        return Role.OPTIMIZER
    if last in BUFFERS or path[0] == "batch_stats":
        return Role.BUFFER
    if (has_container and is_outside_model(path)) or (is_number and last in COUNTERS):
        return Role.OTHER
    if not tensor.dtype.startswith(("float", "bfloat", "complex")):
        return Role.OTHER if is_number else Role.BUFFER
    return Role.PARAMETER


def is_optimizers(name: str) -> bool:
    """Return whether a dotted name belongs to the state of an optimizer."""
    return any(_OPTIMIZER_PART.fullmatch(part) for part in name.split(".", 2)[:2]) or bool(
        _OPTIMIZER_STATE.search(name)
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _common_wrapper(names: Iterable[str]) -> str | None:
    firsts = {name.partition(".")[0] if "." in name else "" for name in names}
    return firsts.pop() if len(firsts) == 1 and firsts <= WRAPPERS else None
