"""The effect of rounding one number to a format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from roundoff.formats.block import BlockFormat
from roundoff.formats.format import Format
from roundoff.formats.round_to import round_to

RoundingOutcome = Literal[
    "exact", "rounded", "subnormal", "underflow to zero", "saturated", "overflow to infinity", "overflow to nan"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingEffect:
    """The rounded number, its relative error, and what happened."""

    value: float
    relative_error: float
    outcome: RoundingOutcome


def effect_of(value: float, fmt: Format) -> RoundingEffect:
    """Round one number to nearest; for a block format, as a block of one.

    `subnormal` means that the result has fewer bits than a normal number. The relative error of NaN is 0; that of an
    overflow to infinity or NaN is infinite.

    >>> from roundoff.formats.registry import format_named
    >>> effect_of(70000.0, format_named("fp16"))
    RoundingEffect(value=inf, relative_error=inf, outcome='overflow to infinity')
    """
    result = float(round_to(torch.tensor(value, dtype=torch.float64), fmt))
    return RoundingEffect(
        value=result, relative_error=_relative_error(value, result), outcome=_outcome(value, result, fmt)
    )


def _relative_error(value: float, result: float) -> float:
    if value == result or math.isnan(value):
        return 0.0
    if math.isinf(value) or math.isnan(result):
        return math.inf
    return abs(result - value) / abs(value)


def _outcome(value: float, result: float, fmt: Format) -> RoundingOutcome:
    if value == result or math.isnan(value):
        return "exact"
    if math.isnan(result):
        return "overflow to nan"
    if math.isinf(result):
        return "overflow to infinity"
    if _has_saturated(value, result, fmt):
        return "saturated"
    if result == 0:
        return "underflow to zero"
    return "subnormal" if abs(result) < fmt.smallest_normal else "rounded"


def _has_saturated(value: float, result: float, fmt: Format) -> bool:
    if isinstance(fmt, BlockFormat):
        # With some scales a number is still too large for its element: its error is then more than half a spacing.
        spacing = math.ldexp(fmt.eps, math.frexp(value)[1] - 1)
        return abs(result) >= fmt.smallest_normal and abs(value) - abs(result) > spacing / 2
    return abs(result) < abs(value) and abs(value) > fmt.largest
