"""How far apart two results of one op may be: inherited from inputs, from rounding, and as measured by perturbing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from roundoff.compare.runs.alignment import op_word
from roundoff.compare.runs.event_distance import Distance, distances, finite_absmax
from roundoff.formats import eps_of_dtype
from roundoff.runs import Event, Run
from roundoff.runs.records.event import StepOp

Measure: TypeAlias = Callable[[Event, Sequence[Event]], tuple[float, float]]
"""From a result and its inputs to a typical norm, and the number of terms in each element of the result."""


CANCELLED = 1000.0
"""A sum has cancelled to nothing if its terms are typically this many times larger."""


def scale_of(word: str, output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """Return the norm that a result's errors are relative to, and of how many terms each of its numbers is the sum.

    It is the norm of the result or, where large numbers cancelled, the norm of a typical result.
    """
    measure = MEASURES.get(word)
    if measure is None or not inputs:
        return output.l2, 1.0
    typical, num_terms = measure(output, inputs)
    if not math.isfinite(typical):
        return output.l2, 1.0
    if typical > CANCELLED * output.l2:
        typical *= math.sqrt(max(1.0, num_terms))  # only errors are left of the sum, and they may all have one sign
    return max(output.l2, typical), max(1.0, num_terms)


def _rms(event: Event) -> float:
    return event.l2 / math.sqrt(event.num_elements) if event.num_elements else 0.0


def _floats(inputs: Sequence[Event]) -> list[Event]:
    return [event for event in inputs if event.dtype.startswith(("float", "bfloat"))]


def _sum_of_all(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """Each result is a sum over a part of the first input."""
    return inputs[0].l2, inputs[0].num_elements / max(1, output.num_elements)


def _mean_of_all(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    typical, num_terms = _sum_of_all(output, inputs)
    return typical / max(1.0, num_terms), num_terms


def _largest(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """Results are sums of one element of each input; broadcast inputs count as often as they are used."""
    return max(_rms(event) for event in _floats(inputs) or inputs) * math.sqrt(output.num_elements), 1.0


def _products(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    return math.prod(_rms(event) for event in _floats(inputs)) * math.sqrt(output.num_elements), 1.0


def _dot_products(output: Event, a: Event, b: Event, num_terms: float) -> tuple[float, float]:
    return math.sqrt(output.num_elements * num_terms) * _rms(a) * _rms(b), num_terms


def _matrix_product(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    a, b = inputs[-2], inputs[-1]
    typical, num_terms = _dot_products(output, a, b, float(a.shape[-1] if a.shape else 1))
    added = _rms(inputs[0]) * math.sqrt(output.num_elements) if len(inputs) > 2 else 0.0
    return max(typical, added), num_terms


def _convolution(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    if len(inputs) < 2 or not inputs[1].shape:
        return output.l2, 1.0
    return _dot_products(output, inputs[0], inputs[1], math.prod(inputs[1].shape[1:]))


def _convolution_backward(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """Of grad_output, input and weight: gradients of the input, the weight and the bias."""
    if len(inputs) < 3 or len(inputs[0].shape) < 3:
        return output.l2, 1.0
    gradient, x, weight = inputs[:3]
    places = gradient.num_elements / max(1, gradient.shape[1])
    if output.shape == weight.shape:
        return _dot_products(output, gradient, x, places)
    if output.shape == x.shape:
        return _dot_products(output, gradient, weight, weight.num_elements / max(1, weight.shape[1]))
    return gradient.l2, places


def _norm(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """Differences of the input are divided by its spread, which may be small against its values."""
    x = inputs[0]
    spread = math.sqrt(max(_rms(x) ** 2 - x.mean**2, 0.0))
    if output.output != "output0" or not spread:
        return 16.0 * max(output.l2, _rms(x) * math.sqrt(output.num_elements)), 1.0
    weights = [_rms(event) for event in inputs[1:2] if event.num_elements < x.num_elements]
    return x.l2 / spread * max(1.0, *weights, 0.0), math.sqrt(x.num_elements / max(1, x.shape[0] if x.shape else 1))


def _norm_backward(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """The first input is the gradient; what it is multiplied by is not larger than the result over it."""
    gradient = inputs[0]
    spreads = [finite_absmax(event) for event in inputs[1:] if event.num_elements < gradient.num_elements]
    typical = gradient.l2 * max([1.0, *spreads]) if output.output == "output0" else gradient.l2
    return max(typical, output.l2), gradient.num_elements / max(1, output.num_elements)


def _softmax(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """An absolute error of the input is a relative one of the result."""
    return output.l2 * max(1.0, finite_absmax(inputs[0])), 1.0


def _softmax_backward(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    return max(output.l2, inputs[0].l2 * min(1.0, finite_absmax(inputs[-1]))), 1.0


def _like_input(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    return max(output.l2, inputs[0].l2), 1.0


def _logarithm(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    """A relative error of the input is an absolute one of the result."""
    return max(output.l2, math.sqrt(output.num_elements)), 1.0


def _loss(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    return max(output.l2, _rms(inputs[0]) * math.sqrt(max(1, output.num_elements))), float(inputs[0].num_elements)


def _plain(output: Event, inputs: Sequence[Event]) -> tuple[float, float]:
    return output.l2, 1.0


_WORDS: tuple[tuple[Measure, str], ...] = (
    (_sum_of_all, "sum cumsum logsumexp norm linalg_vector_norm"),
    (_mean_of_all, "mean avg_pool2d _adaptive_avg_pool2d upsample_bilinear2d"),
    (_largest, "add sub rsub lerp cat stack"),
    (_products, "mul addcmul square"),
    (_matrix_product, "mm bmm addmm baddbmm addbmm mv addmv dot linear matmul"),
    (_convolution, "convolution mkldnn_convolution _convolution cudnn_convolution"),
    (_convolution_backward, "convolution_backward"),
    (_norm, "native_layer_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update"),
    (_norm, "native_group_norm _fused_rms_norm"),
    (_norm_backward, "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward"),
    (_norm_backward, "batch_norm_backward cudnn_batch_norm_backward _fused_rms_norm_backward"),
    (_softmax, "_softmax softmax exp expm1 sigmoid"),
    (_softmax_backward, "_softmax_backward_data"),
    (_like_input, "_log_softmax log_softmax _log_softmax_backward_data gelu_backward silu_backward tanh_backward"),
    (_like_input, "sigmoid_backward elu_backward embedding_dense_backward nll_loss_backward mse_loss_backward"),
    (_like_input, "native_dropout_backward"),
    (_logarithm, "log log1p log2 log10"),
    (_loss, "nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy_with_logits"),
    (_plain, "relu gelu silu tanh elu leaky_relu embedding neg abs index_select gather index"),
    (_plain, "slice_backward select_backward _to_copy clone copy native_dropout"),
)

MEASURES: dict[str, Measure] = {word: measure for measure, words in _WORDS for word in words.split()}
"""How to find the typical norm of an op's result, for the ops where it is known."""


GROWTH = 4.0
"""Errors of inputs may be this many times larger in the result, relative to the numbers it is made of."""
ROUNDINGS = 3.0
"""Two results may differ by this many roundings, of both operands and the result; sums use fp32 or wider."""
ORDERINGS = 5.0
"""And by this many roundings of fp32, from the order of computing; long sums by more."""
FP32_UNIT = 2.0**-24
WIDE_GROWTH = 16.0
"""The same as `GROWTH`, for ops without an entry in `MEASURES`."""

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


def unit_of(dtype: str) -> float:
    """Return the largest relative error of rounding to a dtype; 0 for whole numbers.

    >>> unit_of("bfloat16")
    0.00390625
    """
    return eps_of_dtype(dtype) / 2


def roundings(unit: float, *, num_terms: float = 1.0) -> float:
    """Return how far apart two results may be by rounding alone, relative to their norm."""
    return ROUNDINGS * unit + (ORDERINGS + math.sqrt(num_terms)) * min(unit, FP32_UNIT)


def expected_distance(
    reference: StepOp, output: Event, *, inputs: Sequence[tuple[Event, Distance]], unit: float
) -> float:
    """Return the largest distance of an op's results, as a norm, that its inputs and rounding explain.

    It is infinite if there is no bound.

    Args:
        reference: the op in the reference.
        output: the result in question, of the side where its norm is larger.
        inputs: the op's inputs, chosen in the same way, and how far apart they are.
        unit: the largest relative error of one rounding, in the coarser of the formats that either side computes in.
    """
    word = op_word(reference)
    scale, num_terms = scale_of(word, output, [event for event, _ in inputs])
    off = sum(distance.relative for _, distance in inputs if distance.is_comparable)
    if any(not distance.is_comparable for _, distance in inputs) or (off and word in JUMPING):
        return math.inf
    inherited = 0.0
    if off and word in SWITCHING:
        inherited = GROWTH * math.sqrt(off) * scale
    elif off:
        inherited = (GROWTH if word in MEASURES else WIDE_GROWTH) * off * scale
    return inherited + scale * roundings(unit, num_terms=num_terms)


ResultKey: TypeAlias = tuple[int, str, str, str, int, str]

TIMES = 10.0
"""A candidate in the same format may be this many times the spread away,"""
TIMES_COARSER = 2.0
"""and this many times in a coarser one, whose roundings change everything, not only parameters."""


def spread_of(run: Run, *, step: int, rank: int) -> dict[ResultKey, float]:
    """Return the relative distance of each result to the same one with its parameters moved; empty if not measured."""
    perturbed = run.perturbed_run(step)
    if perturbed is None:
        return {}
    moved = {_result_key(event): event for event in perturbed.iter_events(step=step, rank=rank)}
    events = [event for event in run.iter_events(step=step, rank=rank) if _result_key(event) in moved]
    found = distances([(event, moved[_result_key(event)]) for event in events])
    return {_result_key(event): distance.relative for event, distance in zip(events, found, strict=True)}


def allowed_by(spread: Mapping[ResultKey, float], event: Event, *, unit: float) -> float:
    """Return the relative distance that rounding alone may give a result of the reference in formats of this `unit`."""
    coarser = unit / (unit_of(event.dtype) or unit or 1.0)
    return spread.get(_result_key(event), 0.0) * (TIMES if coarser <= 1 else TIMES_COARSER * coarser)


def _result_key(event: Event) -> ResultKey:
    return event.microbatch, event.phase, event.site, event.op, event.nth, event.output
