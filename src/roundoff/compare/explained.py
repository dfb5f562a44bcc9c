"""How far apart two results of one op may be: by what their inputs differ already, and by what formats round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roundoff.compare.align import op_word
from roundoff.compare.distance import Distance
from roundoff.compare.scales import MEASURES, scale_of
from roundoff.runs import Event
from roundoff.runs.step_ops import StepOp

GROWTH = 4.0
"""Errors of inputs may come out so many times larger, in relation to the numbers a result is made of."""
ROUNDINGS = 3.0
"""Two results may be so many roundings apart, of both operands and the result; sums are made in fp32 or wider."""
ORDERINGS = 5.0
"""And so many of fp32's more, by the order of computing, and more where they are long sums."""
FP32_UNIT = 2.0**-24
WIDE_GROWTH = 16.0
"""The same as `GROWTH` for ops that nothing more is known about."""

RANDOM = frozenset(
    {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "native_dropout", "normal",
        "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "randperm", "rrelu",
        "rrelu_with_noise", "uniform",
    }
)  # fmt: skip
"""Ops that draw random numbers."""

SWITCHING = frozenset(
    {
        "clamp_backward", "hardswish_backward", "hardtanh_backward", "leaky_relu_backward", "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward", "masked_fill", "prelu_backward", "threshold_backward", "where",
    }
)  # fmt: skip
"""Ops that choose by comparing numbers: a small difference in few elements makes a large one in few."""

JUMPING = frozenset(
    {
        "addcdiv", "argmax", "argmin", "argsort", "bucketize", "ceil", "div", "eq", "erfinv", "floor", "fmod", "frac",
        "ge", "gt", "le", "lt", "maximum", "max", "min", "minimum", "ne", "nonzero", "pow", "reciprocal", "remainder",
        "round", "rsqrt", "searchsorted", "sign", "sort", "sqrt", "topk", "trunc", "_fused_adam", "_fused_adamw",
        "_fused_adagrad", "_fused_sgd",
    }
)  # fmt: skip
"""Ops without a bound: they are judged only where their inputs are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the distance of two results may be, as norms."""

    inherited: float
    """From the differences of the inputs; infinite where nothing can be said."""
    rounding: float
    """From rounding in the coarser of the two formats."""

    @property
    def bound(self) -> float:
        """The largest distance that needs no other explanation."""
        return self.inherited + self.rounding


def unit_of(dtype: str) -> float:
    """Return the largest relative error of rounding to a dtype; 0 for whole numbers.

    >>> unit_of("bfloat16")
    0.00390625
    """
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not (found.is_floating_point or found.is_complex):
        return 0.0
    return torch.finfo(found).eps / 2


def roundings(unit: float, *, num_terms: float = 1.0) -> float:
    """Return how far apart two results may be by rounding alone, in relation to their norm."""
    return ROUNDINGS * unit + (ORDERINGS + math.sqrt(num_terms)) * min(unit, FP32_UNIT)


def expected(
    reference: StepOp,
    output: Event,
    *,
    inputs: Sequence[tuple[Event, Distance]],
    unit: float,
) -> Expected:
    """Say how far apart the results of an op may be.

    Args:
        reference: the op in the reference.
        output: the result of it that is asked about, of the side where its norm is larger.
        inputs: the op's inputs, chosen in the same way, and how far apart they are.
        unit: the largest relative error of one rounding, in the coarser of the formats that either side computes in.
    """
    word = op_word(reference)
    given = [event for event, _ in inputs]
    scale, num_terms = scale_of(word, output, given)
    rounding = scale * roundings(unit, num_terms=num_terms)
    off = sum(distance.relative for _, distance in inputs if distance.is_comparable)
    if any(not distance.is_comparable for _, distance in inputs):
        return Expected(inherited=math.inf, rounding=rounding)
    if not off:
        return Expected(inherited=0.0, rounding=rounding)
    if word in JUMPING:
        return Expected(inherited=math.inf, rounding=rounding)
    if word in SWITCHING:
        return Expected(inherited=GROWTH * math.sqrt(off) * scale, rounding=rounding)
    growth = GROWTH if word in MEASURES else WIDE_GROWTH
    return Expected(inherited=growth * off * scale, rounding=rounding)
