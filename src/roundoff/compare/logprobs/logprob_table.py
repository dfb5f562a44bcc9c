"""A table of log-probabilities: a row for each token of a sample, checked, and what its engine says about itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from roundoff.errors import CompareError
from roundoff.runs.files.columns import Interned
from roundoff.words import is_or_are, join_words, plural

Array = npt.NDArray[Any]

MAX_TOKENS = 100_000_000
"""A larger table is refused: it would take gigabytes of memory."""
ALIASES: Mapping[str, tuple[str, ...]] = {
    "sample": ("sample", "sample_id", "request_id", "uid", "id"),
    "position": ("position", "pos", "token_index"),
    "token": ("token", "tokens", "token_id", "token_ids", "input_ids"),
    "logprob": ("logprob", "logprobs", "log_prob", "log_probs", "logp"),
    "mask": ("mask",),
    "top_tokens": ("top_tokens", "top_token_ids"),
    "top_logprobs": ("top_logprobs", "top_log_probs"),
    "logits": ("logits",),
    "routing": ("routing", "experts", "expert_ids"),
    "version": ("version", "weight_version", "policy_version"),
    "padding": ("padding", "num_padding"),
    "batch_size": ("batch_size",),
}
"""The columns of a table, each with the names that files give it."""
WIDE = ("top_tokens", "top_logprobs", "logits", "routing")
"""Columns with several numbers in each row; in Parquet each is a column of its own: `top_tokens.0`."""
PER_SAMPLE = ("version", "padding", "batch_size")
"""Columns that may hold one number for a whole sample."""
_ABOVE_ZERO = 0.02
"""Log-probabilities above 0 by less are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says about itself; None or empty if the table does not say it."""

    dtype: str | None = None
    """What its layers compute in, as torch names it: `bfloat16`."""
    head_dtype: str | None = None
    """What its last layer, which makes the logits, computes in."""
    layers: int | None = None
    """How many blocks it has."""
    weights: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """By version, as a text: the fingerprint of each weight by its name (`fingerprint_weights`)."""

    def merge(self, other: EngineFacts) -> EngineFacts:
        """Return the facts of both; the later ones count."""
        known = {
            name: value for name in ("dtype", "head_dtype", "layers") if (value := getattr(other, name)) is not None
        }
        return replace(self, **known, weights={**self.weights, **other.weights})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTable:
    """A row for each token with a log-probability; columns that the file lacks are None."""

    name: str
    samples: Array
    """Integers; with `sample_names` places in it."""
    sample_names: Sequence[str] | None
    positions: Array
    tokens: Array
    logprobs: Array
    top_tokens: Array | None = None
    top_logprobs: Array | None = None
    logits: Array | None = None
    routing: Array | None = None
    version: Array | None = None
    padding: Array | None = None
    batch_size: Array | None = None
    facts: EngineFacts = field(default_factory=EngineFacts)

    def __len__(self) -> int:
        return len(self.tokens)

    def sample_name(self, row: int) -> str:
        """Return the name of the sample that a row belongs to."""
        number = int(self.samples[row])
        return str(number) if self.sample_names is None else self.sample_names[number]

    def take(self, rows: Array) -> LogprobTable:
        """Return some of the rows."""
        names = ("samples", "positions", "tokens", "logprobs", *WIDE, *PER_SAMPLE)
        taken: dict[str, Any] = {name: None if (x := getattr(self, name)) is None else x[rows] for name in names}
        return replace(self, **taken)


@functools.lru_cache(maxsize=1000)
def known_column(name: str) -> str | None:
    """Return which column a name in a file means, or None.

    >>> known_column("Token_IDs"), known_column("top_tokens.3"), known_column("reward")
    ('token', 'top_tokens', None)
    """
    plain = name.lower()
    stem, dot, number = plain.rpartition(".")
    plain = stem if dot and number.isdecimal() else plain
    return next((column for column, names in ALIASES.items() if plain in names), None)


def build_table(name: str, columns: Mapping[str, Any], facts: EngineFacts) -> LogprobTable:
    """Make a table of columns, or of arrays of samples by tokens, and check it.

    Raises:
        CompareError: a column is missing or of another length, nothing is left, or there are NaN or positive values.
    """
    missing = [column for column in ("token", "logprob") if column not in columns]
    if missing or ("sample" not in columns and np.ndim(columns["token"]) == 1):
        missing = missing or ["sample"]
        raise CompareError.explain(
            f"'{name}' has no column {join_words([repr(column) for column in missing])}.",
            why=f"its columns are {', '.join(columns) or 'none that is known'}.",
            fix=f"name it {' or '.join(ALIASES[missing[0]])}, or write the table with roundoff.save_logprobs.",
        )
    flat = _flatten(name, dict(columns))
    _check_lengths(name, flat)
    table = _to_table(name, flat, facts)
    keep = flat.get("mask")
    is_scored = np.ones(len(table), dtype=bool) if keep is None else np.asarray(keep, dtype=bool)
    if (nulls := flat.get("is_null")) is not None:
        is_scored &= ~nulls
    table = table if is_scored.all() else table.take(np.flatnonzero(is_scored))
    _check_values(table)
    return table


def _flatten(name: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Return arrays of samples by tokens as rows."""
    shape = np.shape(columns["token"])
    if len(shape) == 1:
        return columns
    if len(shape) != 2:
        raise CompareError.explain(f"The tokens in '{name}' have {len(shape)} dimensions.", fix="write one or two.")
    num_samples, length = shape
    found: dict[str, Any] = {
        "sample": np.repeat(np.asarray(columns.get("sample", np.arange(num_samples))), length),
        "position": np.tile(np.arange(length), num_samples),
    }
    for column, values in columns.items():
        array = np.asarray(values)
        if column == "sample":
            continue
        if array.shape[:2] == shape:
            found[column] = array.reshape(-1, *array.shape[2:])
        elif array.shape == (num_samples,):
            found[column] = np.repeat(array, length)
        else:
            found[column] = array  # its length is reported
    return found


def _check_lengths(name: str, columns: Mapping[str, Any]) -> None:
    num_rows = len(columns["token"])
    if num_rows > MAX_TOKENS:
        raise CompareError.explain(
            f"'{name}' has {num_rows} tokens.", why=f"at most {MAX_TOKENS} are read.", fix="compare a part of it."
        )
    for column, values in columns.items():
        num_values = len(values.codes) if isinstance(values, Interned) else len(values)
        if num_values != num_rows:
            raise CompareError.explain(
                f"Column '{column}' of '{name}' has {plural(num_values, 'row')}, but there are {num_rows} tokens."
            )


def _to_table(name: str, columns: Mapping[str, Any], facts: EngineFacts) -> LogprobTable:
    samples, names = _sample_codes(columns["sample"])
    position = columns.get("position")
    return LogprobTable(
        name=name,
        samples=samples,
        sample_names=names,
        positions=_count_positions(samples) if position is None else _integers(name, "position", position),
        tokens=_integers(name, "token", columns["token"]),
        logprobs=_floats(name, "logprob", columns["logprob"]),
        top_tokens=_wide(name, "top_tokens", columns),
        top_logprobs=_wide(name, "top_logprobs", columns),
        logits=_wide(name, "logits", columns),
        routing=_wide(name, "routing", columns),
        version=_optional(name, "version", columns),
        padding=_optional(name, "padding", columns),
        batch_size=_optional(name, "batch_size", columns),
        facts=facts,
    )


def _sample_codes(values: Any) -> tuple[Array, Sequence[str] | None]:
    if isinstance(values, Interned):
        return values.codes, values.values
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array, None
    names, codes = np.unique(array.astype(str), return_inverse=True)
    return codes.astype(np.int64), names.tolist()


def _count_positions(samples: Array) -> Array:
    """Number the rows of each sample in their order."""
    order = np.argsort(samples, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(samples[order]) != 0]) if len(samples) else np.zeros(0, dtype=np.int64)
    counts = np.arange(len(samples)) - np.repeat(begins, np.diff(np.r_[begins, len(samples)]))
    positions = np.empty(len(samples), dtype=np.int64)
    positions[order] = counts
    return positions


def _integers(name: str, column: str, values: Any) -> Array:
    array = np.asarray(values)
    if array.dtype.kind == "f" and (np.abs(array) < 2**63).all() and (array == np.floor(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise _wrong_type(name, column, array, "integers")
    return array


def _floats(name: str, column: str, values: Any) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise _wrong_type(name, column, array, "numbers")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _wrong_type(name: str, column: str, array: Array, wanted: str) -> CompareError:
    return CompareError.explain(f"Column '{column}' of '{name}' holds no {wanted}.", why=f"it is of {array.dtype}.")


def _optional(name: str, column: str, columns: Mapping[str, Any]) -> Array | None:
    return None if column not in columns else _integers(name, column, columns[column])


def _wide(name: str, column: str, columns: Mapping[str, Any]) -> Array | None:
    if column not in columns:
        return None
    array = np.asarray(columns[column])
    array = array.reshape(len(array), -1) if len(array) else array.reshape(0, 1)
    is_whole = column in ("top_tokens", "routing")
    return _integers(name, column, array) if is_whole else _floats(name, column, array)


def _check_values(table: LogprobTable) -> None:
    if not len(table):
        raise CompareError.explain(f"'{table.name}' holds no token with a log-probability.")
    bad = np.flatnonzero(np.isnan(table.logprobs))
    if len(bad):
        count = plural(len(bad), "log-probability", "log-probabilities")
        raise CompareError.explain(
            f"'{table.name}' has {count} that {is_or_are(len(bad))} NaN.",
            why=f"the first is that of {describe_key(table, int(bad[0]))}.",
            fix="find out why the engine computes NaN; write null, or a mask, for tokens without a log-probability.",
        )
    high = np.flatnonzero(table.logprobs > _ABOVE_ZERO)
    if len(high):
        raise CompareError.explain(
            f"'{table.name}' has log-probabilities above 0.",
            why=f"that of {describe_key(table, int(high[0]))} is {table.logprobs[high[0]]:.4g}.",
            fix="write the natural logarithm of each token's probability, not its loss or its logit.",
        )
    if table.positions.min() < 0 or table.positions.max() >= 2**31:
        raise CompareError.explain(f"'{table.name}' has positions below 0 or beyond 2147483647.")


def describe_key(table: LogprobTable, row: int) -> str:
    """Say which token a row is about."""
    return f"sample {table.sample_name(row)}, position {int(table.positions[row])}"
