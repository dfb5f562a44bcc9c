"""Rounding a tensor to a format."""

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
    """Move every value of `x` to a number that `fmt` can hold.

    The result keeps the dtype and shape of `x`: this emulates the format's accuracy, not its storage. `x` is float64,
    float32, bfloat16 or float16; a format that holds every value of that dtype changes nothing. Values are rounded
    once, from what `x` holds, fp64 included (torch's own casts from fp64 go through fp32 and round twice). No gradient
    flows through it.

    - `nearest`: ties go to the neighbour with the even last bit, as in IEEE 754.
    - `stochastic`: to one of the two neighbours, the nearer the likelier, so that the expected result is `x` itself (to
      2**-31 of a spacing). A value that the format holds never moves.
    - `toward_zero`, `up` (towards +infinity), `down`: to the neighbour on that side.

    NaN stays NaN, also in formats that have none. Zero and results that underflow keep their sign, except in formats
    without -0 (fnuz, fixed point).

    Beyond the largest number, `overflow` decides, or the format's own rule if it is None: `saturate` gives the largest
    number, `infinity` and `nan` what they say, each also for infinities in `x`. A value between the largest number and
    the middle to the next one, if there were one, rounds to the largest under `nearest`. `toward_zero`, `up` for
    negative and `down` for positive values always stop at the largest number, whatever the rule, because they round
    towards zero; infinities in `x` follow the rule. Fixed point and block formats only saturate, and let infinities
    pass. Where the dtype of `x` reaches less far than the format, its own largest number on the format's grid counts.

    Args:
        x: The tensor; its strides do not matter. On the CPU it is read and written once.
        fmt: A format, or the name of one (`format_named`).
        rounding: How to choose between the two neighbours.
        generator: Where stochastic rounding draws its key, a CPU generator for every device; torch's default generator
            if None, so that `torch.manual_seed` reproduces the result. Every call advances it by one number.
        stream: Sets numbers apart that are drawn from equally seeded generators: pass the same on all ranks for tensors
            that must stay equal (weights), the rank for those that should differ (activations, gradients).
        out: Where to put the result, `x` itself allowed.
        overflow: Replaces the format's own rule.

    >>> round_to(torch.tensor([0.3, 19.2, 1.6]), "e4m3")
    tensor([ 0.3125, 20.0000,  1.6250])
    >>> round_to(torch.tensor([70000.0, -70000.0]), "fp16", rounding="up")
    tensor([    inf, -65504.])

    Raises:
        FormatError: The format, rounding or overflow rule does not exist, or they do not go together.
        KernelError: `x` is not a dense float tensor, or `out` does not fit it.
    """
    fmt = format_named(fmt) if isinstance(fmt, str) else fmt
    if rounding not in ROUNDINGS:
        raise FormatError.explain(
            f"No rounding '{rounding}'.", why=f"the roundings are {', '.join(ROUNDINGS)}.", fix="use one of them."
        )
    if overflow is not None and overflow not in OVERFLOWS:
        raise FormatError.explain(
            f"No overflow rule '{overflow}'.",
            why=f"the rules are {', '.join(OVERFLOWS)}.",
            fix="use one of them, or None for the format's own.",
        )
    key = draw_key(generator, stream=stream) if rounding == "stochastic" else 0
    return fmt.rounded(x, rounding=rounding, key=key, overflow=overflow, out=out)
