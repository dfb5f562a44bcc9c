"""Rounds a tensor to a format."""

from __future__ import annotations

import torch
from torch import Tensor

from roundoff.errors import FormatError
from roundoff.formats.format import Format
from roundoff.formats.registry import format_named
from roundoff.kernels.random_numbers import draw_key
from roundoff.kernels.rounding_rules import OVERFLOWS, ROUNDINGS, Overflow, Rounding


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
    key = draw_key(generator, stream=stream) if rounding == "stochastic" else 0
    return fmt.rounded(x, rounding=rounding, key=key, overflow=overflow, out=out)
