"""JSON that every parser reads: NaN and the infinities are written as the words "nan", "inf" and "-inf"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roundoff.errors import RunFolderError

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    """What a JSON text can hold; floats may be NaN or infinite."""
else:
    JsonValue = object

MAX_JSON_BYTES = 64 * 2**20
"""A JSON file beyond this size is refused: ours are a few kilobytes."""

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: JsonValue, *, indent: int | None = None) -> str:
    """Write `value` as standard JSON.

    >>> to_json({"loss": float("nan"), "lr": [0.1, float("-inf")]})
    '{"loss": "nan", "lr": [0.1, "-inf"]}'
    """
    return json.dumps(_without_nonfinite(value), allow_nan=False, indent=indent)


def from_json(text: str | bytes) -> JsonValue:
    """Read what `to_json` wrote; the words "nan", "inf" and "-inf" become numbers again.

    A text that is exactly one of the three words comes back as a number too: that is the price of plain JSON.

    >>> from_json('{"loss": "inf", "note": "infinite"}')
    {'loss': inf, 'note': 'infinite'}
    """
    value: JsonValue = json.loads(text)
    written = text if isinstance(text, bytes) else text.encode()
    return _with_nonfinite(value) if b'nan"' in written or b'inf"' in written else value


def read_json_object(path: Path) -> dict[str, JsonValue]:
    """Read a file that holds one JSON object; a `RunFolderError` names the file and what is wrong with it."""
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise _broken(path, f"it has {size} bytes, and no more than {MAX_JSON_BYTES} are read.")
        value = from_json(path.read_bytes())
    except OSError as error:
        raise _broken(path, f"{error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"it is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise _broken(path, "it does not hold a JSON object.")
    return value


def _broken(path: Path, why: str) -> RunFolderError:
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
