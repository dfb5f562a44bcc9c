"""JSON that every parser reads: NaN and the infinities are written as the words "nan", "inf" and "-inf"."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

import numpy as np

from roundoff.errors import RunFolderError
from roundoff.files import read_bytes

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    """What a JSON text can hold; floats may be NaN or infinite."""
else:
    JsonValue = object

MAX_JSON_BYTES = 64 * 2**20
"""A JSON file beyond this size is refused: ours are a few kilobytes."""

_LONG_TEXT = 2**19
_VALUE_BYTES, _FREE_BYTES = 90, 40 * 2**20
"""Shorter texts are not checked; the most memory a value takes; what a text may take beyond three times its size."""

_encode = json.JSONEncoder(allow_nan=False).encode
"""`json.dumps` would make an encoder for every line."""
_ATOMS = frozenset({str, int, float, bool, type(None)})
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: JsonValue, *, indent: int | None = None) -> str:
    """Write `value` as standard JSON.

    >>> to_json({"loss": float("nan"), "lr": [0.1, float("-inf")]})
    '{"loss": "nan", "lr": [0.1, "-inf"]}'
    """
    try:
        return _encode(value) if indent is None else json.dumps(value, allow_nan=False, indent=indent)
    except (ValueError, TypeError):  # few values need it, and many lines are written
        return json.dumps(_without_nonfinite(value), allow_nan=False, indent=indent)


def from_json(text: str | bytes) -> JsonValue:
    """Read what `to_json` wrote; the words "nan", "inf" and "-inf" become numbers again.

    A text that is exactly one of the three words comes back as a number too: that is the price of plain JSON.

    >>> from_json('{"loss": "inf", "note": "infinite"}')
    {'loss': inf, 'note': 'infinite'}
    """
    written = text if isinstance(text, bytes) else text.encode()
    if (
        len(written) > _LONG_TEXT
        and _VALUE_BYTES * sum(written.count(sign) for sign in b"[{,:") > 3 * len(written) + _FREE_BYTES
    ):
        raise ValueError("it holds too many values for its size")
    value: JsonValue = json.loads(text)
    return _with_nonfinite(value) if b'nan"' in written or b'inf"' in written else value


def read_json_object(path: Path) -> dict[str, JsonValue]:
    """Read a file that holds one JSON object; a `RunFolderError` names the file and what is wrong with it."""
    try:
        value = from_json(read_bytes(path, max_bytes=MAX_JSON_BYTES))
    except OSError as error:
        raise _invalid_json_error(path, f"{error.strerror}.") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise _invalid_json_error(path, f"it is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise _invalid_json_error(path, "it does not hold a JSON object.")
    return value


def _invalid_json_error(path: Path, why: str) -> RunFolderError:
    return RunFolderError.explain(f"'{path}' cannot be read.", why=why, fix="take the file from a copy of the run.")


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nonfinite(item) for item in value]
    return value


def _with_nonfinite(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: _with_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nonfinite(item) for item in value]
    return value


T = TypeVar("T")
Check: TypeAlias = Callable[[JsonValue, str], Any]


def optional_field(default: T) -> T:
    """Return the default of a dataclass's field that `object_of` leaves out when it holds its default."""
    return field(default=default, metadata={"is_omitted": True})


def object_of(value: Any) -> dict[str, JsonValue]:
    """Return the fields of a dataclass, and of dataclasses in them, as a JSON object."""
    found: dict[str, JsonValue] = {}
    for name, omitted in _written_fields(cast(Any, type(value))):
        item = getattr(value, name)
        if omitted is MISSING or item != omitted:
            found[name] = item if type(item) in _ATOMS else _as_json(item)
    return found


@functools.cache
def _written_fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the name of each field, and the value with which it is left out or MISSING; many lines are written."""
    return tuple((each.name, each.default if each.metadata else MISSING) for each in fields(cls))


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_json, value))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    return object_of(value) if is_dataclass(value) else value


def object_to_text(value: Any) -> str:
    """Write a dataclass as one line of JSON."""
    return to_json(object_of(value))


def object_from(cls: type[T], value: JsonValue | Mapping[str, Any]) -> T:
    """Build a dataclass from a JSON object; a `ValueError` names the field that is missing or holds something else.

    Fields that `cls` does not know are ignored: a newer version may have added them. Fields with a default may be
    missing.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} is not an object")
    found: dict[str, Any] = {}
    for name, check, is_required in _fields(cast(Any, cls)):
        if name in value:
            found[name] = check(value[name], name)
        elif is_required:
            raise ValueError(f"'{name}' is missing")
    return cls(**found)


def with_detail(value: Mapping[str, JsonValue], cls: type[T]) -> dict[str, Any]:
    """Return a JSON object whose `detail` is built as this class: which one it is depends on the rest of the object."""
    detail = value.get("detail", {})
    return {**value, "detail": object_from(cls, detail) if isinstance(detail, Mapping) else detail}


def object_from_values(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a dataclass from values that our own code collected from the user's objects.

    A name that `cls` does not have is a mistake of ours. A value of another type is the user's (a learning rate of
    numpy's, a sampler's own idea of an epoch): it becomes a plain number where it can, and the default where not.
    """
    unknown = values.keys() - {each.name for each in fields(cast(Any, cls))}
    assert not unknown, f"{cls.__name__} has no field {', '.join(sorted(unknown))}"
    found: dict[str, Any] = {}
    for name, check, is_required in _fields(cast(Any, cls)):
        if name in values:
            with contextlib.suppress(*(() if is_required else (ValueError,))):
                found[name] = check(_without_numpy(values[name]), name)
    return cls(**found)


def _without_numpy(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_numpy(item) for item in value]
    return value.item() if hasattr(value, "item") else value


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, Check, bool], ...]:
    """Return name, check and whether it is required of each field; files have many lines, so hints are read once."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (each.name, _check_of(hints[each.name]), each.default is MISSING and each.default_factory is MISSING)
        for each in fields(cls)
    )


def _check_of(hint: Any) -> Check:
    """Return what turns a JSON value into a value of this type, or raises a `ValueError` that names the field."""
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, types.UnionType):
        options = tuple(option for option in typing.get_args(hint) if option is not type(None))
        if len(options) > 1:  # the record's own `from_object` has chosen the class
            return lambda value, name: value if isinstance(value, options) else _raise_wrong_type(value, name)
        check = _check_of(options[0])
        return lambda value, name: None if value is None else check(value, name)
    if origin is object:
        return lambda value, name: value
    if origin is float:
        return _float
    if origin is str:
        return _str
    if origin is Path:
        return lambda value, name: Path(_str(value, name))
    if origin in (int, bool):
        return lambda value, name: value if type(value) is origin else _raise_wrong_type(value, name)
    if origin is tuple:
        return _tuple_of(_check_of(typing.get_args(hint)[0]))
    if origin is Mapping:
        return _mapping_of(typing.get_args(hint)[1])
    if origin is typing.Literal:
        words = typing.get_args(hint)
        return lambda value, name: value if value in words else _raise_wrong_type(value, name)
    if isinstance(origin, EnumType):
        return lambda value, name: origin(value)
    assert isinstance(origin, type), f"no check for {hint}"
    assert is_dataclass(origin), f"no check for {hint}"
    return functools.partial(_dataclass, origin)


def _dataclass(cls: type[T], value: Any, name: str) -> T:
    if isinstance(value, cls):
        return value
    return object_from(cls, value) if isinstance(value, dict) else _raise_wrong_type(value, name)


_MAX_FLOAT = 2**1023


def _float(value: JsonValue, name: str) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < _MAX_FLOAT:
        return float(value)
    return _raise_wrong_type(value, name)


def _str(value: JsonValue, name: str) -> str:
    if type(value) is str:
        return value
    if type(value) is float and not math.isfinite(value):
        return str(value)  # a text that is one of the words by which JSON holds such numbers: a run called nan
    return _raise_wrong_type(value, name)


def _tuple_of(check: Check) -> Check:
    def check_items(value: JsonValue, name: str) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            _raise_wrong_type(value, name)
        return tuple(check(item, name) for item in value)

    return check_items


def _mapping_of(item_hint: Any) -> Check:
    check = _check_of(item_hint) if item_hint is str else None

    def check_items(value: JsonValue, name: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            _raise_wrong_type(value, name)
        return value if check is None else {key: check(item, name) for key, item in value.items()}

    return check_items


def _raise_wrong_type(value: JsonValue, name: str) -> NoReturn:
    raise ValueError(f"'{name}' holds {value!r:.80}")
