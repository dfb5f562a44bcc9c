"""Takes nested checkpoints apart: tensors with the path that leads to each, and plain settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from roundoff.checkpoints.checkpoint import JsonValue, Role
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import LazyTensor
from roundoff.checkpoints.pickled_arrays import EncodedText, PickledArray
from roundoff.checkpoints.pickled_objects import Global, PickledObject
from roundoff.checkpoints.torch_pickle import DtypeName

MAX_NODES = 300_000
MAX_DEPTH = 60
MAX_NAME = 1000
MAX_SETTINGS = 10_000
MAX_TEXT = 300
MAX_LIST = 100

Keys: TypeAlias = tuple[Any, ...]
Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaves:
    """What a checkpoint holds: tensors by path, in the file's order, and settings by dotted name."""

    tensors: dict[Path, LazyTensor] = field(default_factory=dict)
    settings: dict[str, JsonValue] = field(default_factory=dict)


def take_apart(tree: Any, data: FileBytes) -> Leaves:
    """Walk through a tree of dicts, lists and objects; a `CheckpointError` if it has no end or an unprintable name."""
    leaves = Leaves()
    for path, value in _walk(tree, data):
        if isinstance(value, LazyTensor):
            leaves.tensors[_checked(path, data) or ("tensor",)] = value
        elif path and len(leaves.settings) < MAX_SETTINGS:
            leaves.settings[_shown(".".join(str(key)[:MAX_TEXT] for key in path))] = plain_setting(value)
    return leaves


def _walk(tree: Any, data: FileBytes) -> Iterator[tuple[Keys, Any]]:
    """Yield everything that holds nothing else, with the keys that lead to it, in the order of the file.

    What is inside an object of an object has one dotted key, as in the `state_dict` of a model.
    """
    waiting: list[tuple[Keys, Any, bool]] = [((), tree, False)]
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


def _checked(path: tuple[Any, ...], data: FileBytes) -> Path:
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
