"""Dataclasses as JSON objects and back, with every field's type checked: what was read is what it says it is."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

from roundoff.runs.plain_json import JsonValue, to_json

T = TypeVar("T")
Check: TypeAlias = Callable[[JsonValue, str], Any]


def object_of(value: Any) -> dict[str, JsonValue]:
    """Return the fields of a dataclass as a JSON object."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def object_to_text(value: Any) -> str:
    """Write a dataclass as one line of JSON."""
    return to_json(object_of(value))


def object_from(cls: type[T], value: JsonValue) -> T:
    """Build a dataclass from a JSON object; a `ValueError` names the field that is missing or holds something else.

    Fields that `cls` does not know are left out: a newer version may have added them. Fields with a default may be
    missing.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} stands where an object should")
    found: dict[str, Any] = {}
    for name, check, is_required in _fields(cast(Any, cls)):
        if name in value:
            found[name] = check(value[name], name)
        elif is_required:
            raise ValueError(f"'{name}' is missing")
    return cls(**found)


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, Check, bool], ...]:
    """Return name, check and whether it is required of each field; files have many lines, so hints are read once."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (field.name, _check_of(hints[field.name]), field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    )


def _check_of(hint: Any) -> Check:
    """Return what turns a JSON value into a value of this type, or raises a `ValueError` that names the field."""
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, types.UnionType):
        (option,) = (option for option in typing.get_args(hint) if option is not type(None))
        check = _check_of(option)
        return lambda value, name: None if value is None else check(value, name)
    if origin is object:
        return lambda value, name: value
    if origin is float:
        return _float
    if origin is str:
        return _str
    if origin in (int, bool):
        return lambda value, name: value if type(value) is origin else _refuse(value, name)
    if origin is tuple:
        return _tuple_of(_check_of(typing.get_args(hint)[0]))
    if origin is Mapping:
        return _mapping_of(typing.get_args(hint)[1])
    if origin is typing.Literal:
        words = typing.get_args(hint)
        return lambda value, name: value if value in words else _refuse(value, name)
    if isinstance(origin, EnumType):
        return lambda value, name: origin(value)
    assert isinstance(origin, type), f"no check for {hint}"
    assert is_dataclass(origin), f"no check for {hint}"
    return lambda value, name: object_from(origin, value) if isinstance(value, dict) else _refuse(value, name)


def _float(value: JsonValue, name: str) -> float:
    if type(value) is float:
        return value
    return float(value) if type(value) is int else _refuse(value, name)


def _str(value: JsonValue, name: str) -> str:
    if type(value) is str:
        return value
    if type(value) is float and not math.isfinite(value):
        return str(value)  # a text that is one of the words by which JSON holds such numbers: a run called nan
    return _refuse(value, name)


def _tuple_of(check: Check) -> Check:
    def check_items(value: JsonValue, name: str) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            _refuse(value, name)
        return tuple(check(item, name) for item in value)

    return check_items


def _mapping_of(item_hint: Any) -> Check:
    check = _check_of(item_hint) if item_hint is str else None

    def check_items(value: JsonValue, name: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            _refuse(value, name)
        return value if check is None else {key: check(item, name) for key, item in value.items()}

    return check_items


def _refuse(value: JsonValue, name: str) -> NoReturn:
    raise ValueError(f"'{name}' holds {value!r:.80}")
