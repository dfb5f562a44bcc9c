"""Rounds a tensor to a format, and describes the effect of rounding one number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from roundoff.errors import FormatError
from roundoff.formats.block import BlockFormat
from roundoff.formats.format import Format
from roundoff.formats.registry import format_named
from roundoff.kernels.rounding_rules import OVERFLOWS, ROUNDINGS, Overflow, Rounding

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def round_to(
    x: Tensor,
    fmt: Format | str,
    *,
    rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
    stream: int = 0,
    out: Tensor | None = None,
    overflow: Overflow | None = None,
) -> Tensor:
    """Round every value of `x` to a number of the format `fmt`.

    The result has the dtype and shape of `x`: this emulates the accuracy of the format, not its storage. `x` is
    float64, float32, bfloat16 or float16; a format that holds every value of that dtype changes nothing. Values are
    rounded once, also from fp64 (torch's own casts from fp64 go through fp32 and round twice). There is no gradient.

    - `nearest`: ties go to the neighbour with the even last bit, as in IEEE 754.
    - `stochastic`: to one of the two neighbours, with probabilities such that the expected result is `x` itself (to
      2**-31 of a spacing). Values of the format never change.
    - `toward_zero`, `up` (towards +infinity), `down`: to the neighbour on that side.

    NaN stays NaN, also in formats without NaN. Zeros and results that underflow keep their sign, except in formats
    without -0 (fnuz, fixed point).

    Values beyond the largest number follow `overflow`, by default the rule of the format: `saturate` gives the largest
    number, `infinity` an infinity and `nan` NaN, for infinities in `x` too. Under `nearest`, a value up to halfway
    from the largest number to where the next one would be becomes the largest. `toward_zero`, `up` for negative and
    `down` for positive values round towards zero, so finite values become at most the largest number under any rule.
    Fixed point and block formats only saturate, and keep infinities. If the dtype of `x` has a smaller range than the
    format, the limit is the largest number of the format that the dtype holds.

    Args:
        x: The tensor, with any strides. On the CPU it is read and written once.
        fmt: A format, or its name (`format_named`).
        rounding: How to choose between the two neighbours.
        generator: The generator for stochastic rounding, on the CPU for every device; by default torch's, so that
            `torch.manual_seed` reproduces the result. Every call advances it by one number.
        stream: Selects different numbers from generators with equal seeds: pass the same on all ranks for tensors that
            must stay equal (weights), the rank for those that should differ (activations, gradients).
        out: The tensor for the result; may be `x` itself.
        overflow: Replaces the rule of the format.

    >>> import torch
    >>> round_to(torch.tensor([0.3, 19.2, 1.6]), "e4m3")
    tensor([ 0.3125, 20.0000,  1.6250])
    >>> round_to(torch.tensor([70000.0, -70000.0]), "fp16", rounding="up")
    tensor([    inf, -65504.])

    Raises:
        FormatError: The format, rounding or overflow rule is unknown, or they cannot be combined.
        KernelError: `x` is not a dense float tensor, or `out` does not match it.
    """
    fmt = format_named(fmt) if isinstance(fmt, str) else fmt
    if rounding not in ROUNDINGS:
        raise FormatError.explain(
            f"Unknown rounding '{rounding}'.", why=f"known are {', '.join(ROUNDINGS)}.", fix="use one of them."
        )
    if overflow is not None and overflow not in OVERFLOWS:
        raise FormatError.explain(
            f"Unknown overflow rule '{overflow}'.",
            why=f"known are {', '.join(OVERFLOWS)}.",
            fix="use one of them, or None for the rule of the format.",
        )
    key = _draw_key(generator, stream=stream) if rounding == "stochastic" else 0
    return fmt.round_tensor(x, rounding=rounding, key=key, overflow=overflow, out=out)


def _draw_key(generator: torch.Generator | None, *, stream: int) -> int:
    from roundoff.kernels.random_numbers import draw_key

    return draw_key(generator, stream=stream)


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
    import torch

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
