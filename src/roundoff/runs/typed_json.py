"""Dataclasses as JSON objects and back, with every field's type checked: what was read is what it says it is."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from typing import Any, TypeVar, cast

from roundoff.runs.plain_json import JsonValue, to_json

T = TypeVar("T")


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
    hints = _hints(cast(Any, cls))
    found: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in value:
            found[field.name] = _checked(value[field.name], hints[field.name], field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"'{field.name}' is missing")
    return cls(**found)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _checked(value: JsonValue, hint: Any, name: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
    origin = typing.get_origin(hint) or hint
    if origin is object:
        return value
    if isinstance(origin, type) and is_dataclass(origin) and isinstance(value, dict):
        return object_from(origin, value)
    if isinstance(origin, EnumType):
        return origin(value)
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_checked(item, typing.get_args(hint)[0], name) for item in value)
    if origin is typing.Literal and value in typing.get_args(hint):
        return value
    if origin is Mapping and isinstance(value, dict):
        return _checked_mapping(value, hint, name)
    if origin in (int, float, str, bool) and type(value) is origin:
        return value
    raise ValueError(f"'{name}' holds {value!r:.80}")


def _checked_mapping(value: dict[str, JsonValue], hint: Any, name: str) -> dict[str, Any]:
    _, item_hint = typing.get_args(hint)
    if item_hint is str:
        return {key: _checked(item, str, name) for key, item in value.items()}
    return value
