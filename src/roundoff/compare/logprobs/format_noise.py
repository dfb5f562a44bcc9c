"""How far two healthy engines' log-probabilities are apart, derived from their formats.

A rounding to nearest with unit roundoff u has a relative error of 0.425 u (root mean square over a binade). In a
transformer of L blocks, two roundings a block stay in the residual stream, where later blocks dilute them by half on
average, and about six more are relative to the whole of the branches: the hidden state is off by 0.425 u sqrt(L + 6).
A logit is a random projection of it and is off by the same part of the spread of the logits. A log-probability is a
logit less the mean under its own distribution, which makes that error sqrt(2) (1 - p) as large. A head that computes in
a narrow format also rounds each logit itself. The errors of the two engines are independent.

These are figures for engines that differ in kernels, order and batch. With 32 blocks and the usual logits they give
0.03 nats for bfloat16 with a wide head, and 0.04 with a narrow one, as people measure on large models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roundoff.compare.logprobs.logprob_table import Array, EngineFacts
from roundoff.compare.logprobs.paired_tokens import PairedTokens, rms

_ROUNDING = 0.425
_UNIT_ROUNDOFFS = {
    "float64": 2.0**-53,
    "float32": 2.0**-11,
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "int8": 2.0**-8,
}
"""float32 counts as TF32: the table does not say what its matrix units did."""
_NARROW_HEADS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
DEFAULT_DTYPE = "bfloat16"
_DEFAULT_LAYERS = 32
_DEFAULT_SPREAD = 3.0
_DEFAULT_SIZE = 12.0
"""The spread of the logits over the vocabulary, and the size of the large ones, where the tables have no logits."""
_EXTRA_ROUNDINGS = 6
TOLERANCE = 3.0
"""Two engines differ beyond their formats if they are this many times further apart than expected: depth and logits of
the model are known to within a factor of two or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatNoise:
    """What formats explain."""

    expected: float
    """The root mean square of the difference, in nats."""
    reference_dtype: str
    candidate_dtype: str
    is_stated: bool
    """Whether both tables say their formats; otherwise bfloat16 is assumed."""

    @property
    def limit(self) -> float:
        """The largest difference that formats explain."""
        return TOLERANCE * self.expected


def expect_noise(pairs: PairedTokens) -> FormatNoise:
    """Derive the noise from the formats of both engines, and from the probabilities of these tokens."""
    pairs = pairs.subset
    spread, size = _logit_sizes(pairs)
    engines = (pairs.reference.facts, pairs.candidate.facts)
    variance = sum(_body(facts, spread) ** 2 + _head(facts, size) ** 2 for facts in engines)
    with np.errstate(over="ignore"):
        uncertain = rms(1 - np.exp(np.minimum(pairs.reference.logprobs[pairs.is_finite].astype(np.float64), 0.0)))
    stored = sum(_storage_error(table.logprobs[pairs.is_finite]) ** 2 for table in (pairs.reference, pairs.candidate))
    return FormatNoise(
        expected=math.sqrt(2 * variance * uncertain**2 + stored),
        reference_dtype=_dtype(engines[0]),
        candidate_dtype=_dtype(engines[1]),
        is_stated=all(facts.dtype is not None for facts in engines),
    )


def unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a format; that of bfloat16 if it is unknown."""
    return _UNIT_ROUNDOFFS.get(dtype, _UNIT_ROUNDOFFS[DEFAULT_DTYPE])


def _dtype(facts: EngineFacts) -> str:
    return facts.dtype or DEFAULT_DTYPE


def _body(facts: EngineFacts, spread: float) -> float:
    depth = math.sqrt((facts.layers or _DEFAULT_LAYERS) + _EXTRA_ROUNDINGS)
    return _ROUNDING * unit_roundoff(_dtype(facts)) * depth * spread


def _head(facts: EngineFacts, size: float) -> float:
    head = facts.head_dtype or _dtype(facts)
    return _ROUNDING * unit_roundoff(head) * size if head in _NARROW_HEADS else 0.0


def _storage_error(logprobs: Array) -> float:
    """Return the error of log-probabilities that are bfloat16 numbers themselves."""
    if not is_bfloat16(logprobs):
        return 0.0
    return _ROUNDING * unit_roundoff("bfloat16") * rms(logprobs.astype(np.float64))


def is_bfloat16(values: Array) -> bool:
    """Whether (almost) all numbers are bfloat16 numbers."""
    numbers = values[values != 0].astype(np.float32)
    return len(numbers) > 0 and bool(((numbers.view(np.uint32) & 0xFFFF) == 0).mean() > 0.99)


def _logit_sizes(pairs: PairedTokens) -> tuple[float, float]:
    logits = pairs.reference.logits if pairs.reference.logits is not None else pairs.candidate.logits
    if logits is None or not np.isfinite(logits).all():
        return _DEFAULT_SPREAD, _DEFAULT_SIZE
    some = logits[:4096].astype(np.float64)
    return float(np.sqrt(some.var(axis=1).mean())), float(np.sqrt((some**2).mean()))
