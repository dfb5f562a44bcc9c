"""Makes a `Checkpoint` of what a reader found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from roundoff.checkpoints.checkpoint import Checkpoint, Entry, JsonValue, Role, StoredTensor
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import LazyTensor
from roundoff.checkpoints.read.pickled_objects import EncodedText, Global, PickledArray, PickledObject
from roundoff.checkpoints.read.torch_files import DtypeName

# == Takes nested checkpoints apart: tensors with the path that leads to each, and plain settings.

MAX_NODES = 300_000
MAX_DEPTH = 60
MAX_NAME = 1000
MAX_SETTINGS = 10_000
MAX_TEXT = 300
MAX_LIST = 100

TreeKeys: TypeAlias = tuple[Any, ...]
TreePath: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaves:
    """What a checkpoint holds: tensors by path, in the file's order, and settings by dotted name."""

    tensors: dict[TreePath, LazyTensor] = field(default_factory=dict)
    settings: dict[str, JsonValue] = field(default_factory=dict)


def take_apart(tree: Any, data: FileBytes) -> Leaves:
    """Walk through a tree of dicts, lists and objects; a `CheckpointError` if it has no end or an unprintable name."""
    leaves = Leaves()
    for path, value in _walk(tree, data):
        if isinstance(value, LazyTensor):
            leaves.tensors[_check_path(path, data) or ("tensor",)] = value
        elif path and len(leaves.settings) < MAX_SETTINGS:
            leaves.settings[_shown(".".join(str(key)[:MAX_TEXT] for key in path))] = plain_setting(value)
    return leaves


def _walk(tree: Any, data: FileBytes) -> Iterator[tuple[TreeKeys, Any]]:
    """Yield everything that holds nothing else, with the keys that lead to it, in the order of the file.

    What is inside an object of an object has one dotted key, as in the `state_dict` of a model.
    """
    waiting: list[tuple[TreeKeys, Any, bool]] = [((), tree, False)]
    num_nodes = 0
    while waiting:
        keys, value, is_inner = waiting.pop()
        num_nodes += 1 + (len(value) // MAX_LIST if isinstance(value, list | tuple) else 0)
        if num_nodes > MAX_NODES or len(keys) > MAX_DEPTH or (is_inner and len(keys[-1]) > MAX_NAME):
            how = "too many" if num_nodes > MAX_NODES else "too deeply nested"
            raise data.broken(f"it holds {how} things, or holds itself")
        is_object = isinstance(value, PickledObject)
        inside = _inside(value)
        if inside is None:
            yield keys, value.tensor if isinstance(value, PickledArray) and value.tensor else value
        elif is_object and is_inner:
            waiting += [((*keys[:-1], f"{keys[-1]}.{key}"), item, True) for key, item in reversed(inside)]
        else:
            waiting += [((*keys, key), item, is_object and isinstance(key, str)) for key, item in reversed(inside)]


def _inside(value: Any) -> list[tuple[Any, Any]] | None:
    """Return what a value holds, each with its key; None if it holds nothing that has a name."""
    match value:
        case PickledObject() if _is_module(value):
            return _inside_module(value)
        case PickledObject(state=dict() as state):
            return list({**state, **(value.items or {})}.items())
        case PickledObject(items=dict() as items):
            return list(items.items())
        case dict():
            return list(value.items())
        case list() | tuple() if any(isinstance(item, _CONTAINERS) for item in value):
            return list(enumerate(value))
    return None


_CONTAINERS = (LazyTensor, PickledArray, PickledObject, dict, list, tuple)


def _is_module(value: PickledObject) -> bool:
    return all(isinstance(value.attribute(name), dict) for name in ("_parameters", "_buffers", "_modules"))


def _inside_module(module: PickledObject) -> list[tuple[Any, Any]]:
    """Return what a model that was saved whole holds, as its `state_dict` would have it."""
    tensors = [
        (name, replace(tensor, role=role))
        for held, role in (("_parameters", Role.PARAMETER), ("_buffers", Role.BUFFER))
        for name, tensor in module.attribute(held).items()
        if isinstance(tensor, LazyTensor)
    ]
    modules = module.attribute("_modules").items()
    return tensors + [(name, child) for name, child in modules if isinstance(child, PickledObject)]


def _check_path(path: tuple[Any, ...], data: FileBytes) -> TreePath:
    """Return the path of a tensor as texts; a `CheckpointError` if it could not be printed, typed or told apart."""
    for key in path:
        if type(key) is not int and not isinstance(key, str):
            raise data.broken(f"a tensor has the name {_shown(str(plain_setting(key)))}, which is no text")
    names = tuple(str(key) for key in path)
    if sum(map(len, names)) > MAX_NAME:
        raise data.broken(f"a tensor has a name of {sum(map(len, names))} letters")
    if not all(name.isprintable() for name in names) or (names and not any(names)):
        raise data.broken(f"a tensor has the name {'.'.join(names)!a}, which cannot be printed")
    return names


def _shown(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def plain_setting(value: Any) -> JsonValue:
    """Return a value as JSON would hold it; long texts and lists are cut, what is neither is told by its kind."""
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
        case memoryview() | EncodedText():
            return f"<{len(value)} bytes>"
        case DtypeName(name=name):
            return f"torch.{name}"
        case PickledObject(made_by=made_by):
            return _shown(f"<{made_by}>")
        case Global():
            return _shown(f"<{value}>")
        case complex():
            return str(value)
        case _:
            return f"<{type(value).__name__}>"


# == Names and roles: which tensors are the model's, what they are called in it, and what each is for.

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
"""A dict of this name in a training's checkpoint holds the model, or a part of it."""

WRAPPERS = frozenset({"state_dict", "module", "_orig_mod"})
"""What wrappers put before every name of a model."""

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
"""What buffers are called, by the last part of their names."""

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
"""What single numbers beside the model are called."""

_AVERAGES = re.compile(r"(^|_)(ema|swa|average|averaged|teacher)(_|$)", re.IGNORECASE)
_OPTIMIZER_PART = re.compile(r"opt|optims?|(\w+_)?optimi[sz]er\w*|opt_state\w*|lr_sched\w*", re.IGNORECASE)
_OPTIMIZER_STATE = re.compile(
    r"^(moments|moment1|moment2|accum|stat|adam_m|adam_v|velocity|exp_avg|exp_avg_sq|mean_square|mean_gradient)\."
    r"|_(velocity|moment|moment1|moment2|beta1_pow_acc|beta2_pow_acc|mean_square|mean_grad|momentum|inf_norm)_\d+$"
    r"|\.(exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|square_avg|acc_delta)$"
)


def model_names(paths: Iterable[TreePath]) -> dict[TreePath, str]:
    """Give every tensor its dotted name; those of the model lose what wrappers and containers put before them.

    >>> model_names([("model", "module.conv.weight"), ("optimizer", "state", "0", "step")])
    {('model', 'module.conv.weight'): 'conv.weight', ('optimizer', 'state', '0', 'step'): 'optimizer.state.0.step'}
    """
    names = {path: ".".join(path) for path in paths}
    contained = {path for path in names if is_contained(path)}
    beside = {path for path, name in names.items() if is_optimizers(name) or _last(name) in COUNTERS}
    model = contained or names.keys() - beside
    short = {path: ".".join(path[1:]) if path in contained else names[path] for path in model}
    while short and (first := _common_wrapper(short.values())):
        short = {path: name.removeprefix(f"{first}.") for path, name in short.items()}
    shortened = {path: short.get(path, name) for path, name in names.items()}
    return shortened if len(set(shortened.values())) == len(names) else names


def is_contained(path: TreePath) -> bool:
    """Say whether a tensor is in a dict that is called as a model's is."""
    return len(path) > 1 and path[0] in MODEL_CONTAINERS


def is_beside_model(path: TreePath) -> bool:
    """Say whether a tensor of a checkpoint that has a dict for its model is none of it: alone, or an average of it."""
    return len(path) == 1 or path[0] in ("callbacks", "loops") or bool(_AVERAGES.search(path[0]))


def role_of(path: TreePath, tensor: LazyTensor, *, has_container: bool = False) -> Role:
    """Say what a tensor is for: as the file says, or else by its name, its dtype and whether the model is elsewhere."""
    name = ".".join(path)
    last = _last(name)
    is_number = all(size == 1 for size in tensor.shape)
    if tensor.role is not None:
        return tensor.role
    if is_optimizers(name):
        return Role.OPTIMIZER
    if last in BUFFERS or path[0] == "batch_stats":
        return Role.BUFFER
    if (has_container and is_beside_model(path)) or (is_number and last in COUNTERS):
        return Role.OTHER
    if not tensor.dtype.startswith(("float", "bfloat", "complex")):
        return Role.OTHER if is_number else Role.BUFFER
    return Role.PARAMETER


def is_optimizers(name: str) -> bool:
    """Say whether a dotted name is that of an optimizer's state."""
    return any(_OPTIMIZER_PART.fullmatch(part) for part in name.split(".", 2)[:2]) or bool(
        _OPTIMIZER_STATE.search(name)
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _common_wrapper(names: Iterable[str]) -> str | None:
    firsts = {name.partition(".")[0] if "." in name else "" for name in names}
    return firsts.pop() if len(firsts) == 1 and firsts <= WRAPPERS else None


def assemble(tree: Any, data: FileBytes, *, format: str, path: Path | None = None) -> Checkpoint:
    """Name what a tree of dicts, lists and tensors holds; a `CheckpointError` if two tensors have one name.

    `data` is the file it stands in, for complaints; `path` is what was opened, if that is another.
    """
    leaves = take_apart(tree, data)
    names = model_names(leaves.tensors)
    has_container = any(map(is_contained, leaves.tensors))
    stored: dict[str, StoredTensor] = {}
    for keys, tensor in leaves.tensors.items():
        name = names[keys]
        if name in stored:
            raise data.broken(f"two tensors are called '{name}'")
        role = role_of(keys, tensor, has_container=has_container)
        entry = Entry(name=name, shape=tensor.shape, dtype=tensor.dtype, role=role)
        stored[name] = StoredTensor(entry=entry, read=tensor.read)
    return Checkpoint(path=path or data.path, format=format, tensors=stored.values(), settings=leaves.settings)
