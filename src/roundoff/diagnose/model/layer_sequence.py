"""Layers one after the other: nonlinearities missing or applied twice, numbers that vanish or explode with depth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import first_histories
from roundoff.diagnose.rule import Code, FaultEffect, error, rule, warning
from roundoff.diagnose.step_flow import (
    Layer,
    finding_at,
    first_rank,
    forward_ops,
    layers_of,
    op_names,
    root_mean_square,
)
from roundoff.diagnose.wording import format_short
from roundoff.runs import BatchFacts, Finding, JsonValue, Run
from roundoff.runs.records.event import StepOp
from roundoff.words import join_names

_TAKES_LOGITS = ("cross_entropy", "CrossEntropyLoss")


@rule(
    Code(
        name="double-softmax",
        means="Probabilities are passed to a loss that expects logits. The loss cannot get close to 0, and the "
        "gradients are small.",
        fix="Pass the values before the softmax to the loss.",
    ),
    order=410,
    checks="probabilities passed to a loss that expects logits",
    needs=[
        needs.some(
            lambda run: _given_to_cross_entropy(run) or "_log_softmax" in op_names(run, step=0),
            "no cross entropy was seen",
        )
    ],
)
def doubled_softmax(run: Run) -> Finding | None:
    """Find a softmax whose result goes through another softmax in the loss."""
    pair = next((pair for pair in _pairs(forward_ops(run))), None)
    seen = [facts for facts in _given_to_cross_entropy(run) if facts.num_classes is not None and facts.num_classes > 1]
    sums_to_one = len(seen) >= 2 and all(facts.rows_sum_to_one for facts in seen)
    if pair is None and not sums_to_one:
        return _find_later_softmax(run)
    softmax = None if pair is None else pair[0].first
    return error(
        rule="double-softmax",
        confidence=0.98 if pair is not None and sums_to_one else 0.95,
        step=0,
        phase="forward",
        site=None if softmax is None else softmax.site,
        op=None if softmax is None else softmax.op_name,
        source=None if softmax is None else softmax.source,
        title="softmax is applied twice",
        why="the rows passed to the cross entropy already add up to 1; it treats them as logits, so the loss "
        "cannot get close to 0 and its gradients are small",
        fix="pass the values before the softmax to the loss; use the softmax only for predictions",
        evidence=({"steps_with_rows_that_sum_to_one": len(seen) if sums_to_one else 0},),
    )


def _find_later_softmax(run: Run) -> Finding | None:
    """Find a cross entropy that a later model of the script, or code inside of a model, gives probabilities."""
    for call in run.criteria(rank=first_rank(run)):
        if call.function == "cross_entropy" and call.made_by == "softmax" and call.rows_sum_to_one:
            return error(
                rule="double-softmax",
                confidence=0.95,
                step=call.step,
                phase="forward",
                source=call.source,
                title="softmax is applied twice",
                why=f"in step {call.step} the cross entropy is given the result of a softmax, whose rows add up to 1; "
                "it treats them as logits, so the loss cannot get close to 0 and its gradients are small",
                fix="pass the values before the softmax to the loss; use the softmax only for predictions",
                evidence=({"shape": list(call.input_shape), "value": call.value},),
            )
    return None


def _given_to_cross_entropy(run: Run) -> list[BatchFacts]:
    return [facts for facts in run.inputs(rank=first_rank(run)) if facts.criterion in _TAKES_LOGITS]


def _pairs(ops: Sequence[StepOp]) -> list[tuple[StepOp, StepOp]]:
    """Return each softmax with the log_softmax that reads its result."""
    made = {op.outputs[0].hash: op for op in ops if op.bare == "_softmax" and op.outputs[0].num_elements > 1}
    found = []
    for op in ops:
        if op.bare == "_log_softmax" and op.inputs and op.inputs[0].hash in made:
            found.append((made[op.inputs[0].hash], op))
    return found


_AFFINE = frozenset({
    "mm", "addmm", "convolution", "linear", "mkldnn_linear", "add", "sub", "sum", "mean", "cat", "stack", "clone",
    "copy", "_to_copy", "embedding", "avg_pool2d", "avg_pool1d", "_adaptive_avg_pool2d", "native_batch_norm",
    "_native_batch_norm_legit", "_batch_norm_with_update", "native_dropout", "bernoulli", "constant_pad_nd", "detach",
    "zeros", "ones", "arange", "fill", "zero", "contiguous", "_unsafe_view", "randn", "rand", "div",
})  # fmt: skip
"""Ops that are affine in their inputs, or create constants. A division is affine if its divisor is a number."""


@rule(
    Code(
        name="affine-network",
        means="Layers follow each other without a nonlinearity: together they can learn no more than a single layer.",
        fix="Put a nonlinearity between them, such as `nn.ReLU()`.",
    ),
    order=480,
    checks="layers without a nonlinearity between them",
    needs=[
        needs.structure,
        needs.recorded_first_step,
        needs.some(lambda run: len(layers_of(run, forward_ops(run))) > 1, "the model has fewer than 2 layers"),
    ],
)
def affine_networks(run: Run) -> Finding | None:
    """Find models with only affine ops between their layers; a single layer is fine."""
    ops = forward_ops(run)
    layers = layers_of(run, ops)
    if len(layers) < 2:
        return None
    last = layers[-1].op.first.order
    between = [op for op in ops if op.first.order < last]
    if not all(_is_affine(op, between) for op in between) or not _are_redundant(layers):
        return None
    sites = [layer.site for layer in layers]
    return warning(
        rule="affine-network",
        confidence=0.9,
        step=0,
        phase="forward",
        site=sites[0],
        source=layers[0].result.source,
        title=f"{len(sites)} layers without a nonlinearity between them",
        why=f"{join_names(sites, at_most=6)}: every op from the first to the last of them is affine, so together "
        "they can learn no more than a single layer",
        fix="put a nonlinearity between the layers, such as nn.ReLU() or nn.GELU()",
        evidence=({"sites": list(sites)}, {"ops": sorted({op.bare for op in between})}),
    )


def _is_affine(op: StepOp, ops: Sequence[StepOp]) -> bool:
    if op.bare == "mul":  # dropout multiplies by a mask; a product of two activations is not affine
        site = op.first.site
        return any(other.bare == "bernoulli" and other.first.site == site for other in ops)
    if op.bare == "div":
        return len(op.inputs) < 2
    return op.bare in _AFFINE


def _are_redundant(layers: Sequence[Layer]) -> bool:
    """Say whether some pair is wider than a bottleneck: narrow pairs factorize a matrix on purpose."""
    shapes = [layer.weight.shape for layer in layers]
    return any(first[0] >= min(first[1], second[0]) for first, second in itertools.pairwise(shapes))


_MIN_LAYERS = 4
_VANISHED = 1e-5
_DECAY = 0.3
"""Per layer; plain deep networks with torch's default initial values keep about 0.4 per layer, and still learn."""
_EXPLODED = 1e3
_GROWTH = 1.5


@rule(
    Code(
        name="exploding-activations",
        means="From the first step on, activations grow by a constant factor with every layer.",
        detected="In the recorded step 0 the size of each layer's output is compared with that of the layer before: at "
        "least 1.5 times per layer, and a thousand times in total.",
        fix="Use smaller initial weights, with a variance of 2 / inputs for ReLU, or put normalization layers between "
        "the layers.",
    ),
    Code(
        name="vanishing-gradients",
        means="Gradients shrink by a constant factor with every layer on their way back, so the first layers do not "
        "learn.",
        detected="In the first steps the size of a gradient element is compared from layer to layer: below 0.3 times "
        "per layer, and below 1e-5 from the last to the first.",
        fix="Use ReLU or GELU instead of sigmoid or tanh, matching initial values, residual connections, or "
        "normalization layers.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
        follows_from=("zero-init", "symmetric-init", "dead-units", "constant-input", "terms-cancel"),
    ),
    order=440,
    checks="activations and gradients that grow or shrink with depth",
    needs=[
        needs.structure,
        needs.recorded_first_step,
        needs.some(
            lambda run: len(layers_of(run, forward_ops(run))) >= _MIN_LAYERS,
            f"the model has fewer than {_MIN_LAYERS} layers",
        ),
    ],
)
def numbers_by_depth(run: Run) -> list[Finding | None]:
    """Find gradients that shrink, and activations that grow, by a constant factor per layer."""
    layers = layers_of(run, forward_ops(run))
    return [_find_exploding(layers), _find_vanishing(run, layers)]


def _find_exploding(layers: Sequence[Layer]) -> Finding | None:
    sizes = [root_mean_square(layer.result) for layer in layers]
    if len(sizes) < _MIN_LAYERS or not all(math.isfinite(size) and size > 0 for size in sizes[:1]):
        return None
    finite = [size for size in sizes if math.isfinite(size)]
    last = max(range(len(finite)), key=lambda place: finite[place])
    if last + 1 < _MIN_LAYERS:
        return None
    growth = (finite[last] / finite[0]) ** (1 / last)
    if finite[last] / finite[0] < _EXPLODED or growth < _GROWTH:
        return None
    first = layers[0]
    return finding_at(
        first,
        "exploding-activations",
        title=f"activations grow {format_short(growth)} times with every layer",
        why=f"in step 0 their size is {format_short(finite[0])} after {first.site} and "
        f"{format_short(finite[last])} after {layers[last].site}, {last} layers later; the weights there have a "
        f"standard deviation of {_std(layers[last])}",
        fix="use smaller initial weights, with a variance of 2 / inputs for ReLU (nn.init.kaiming_normal_), or put "
        "normalization layers between the layers",
        evidence=_evidence(layers[: last + 1], finite),
    )


def _find_vanishing(run: Run, layers: Sequence[Layer]) -> Finding | None:
    histories = first_histories(run)
    known = [layer for layer in layers if layer.weight.name in histories]
    sizes = [histories[str(layer.weight.name)].root_mean_square for layer in known]
    pairs = [(layer, size) for layer, size in zip(known, sizes, strict=True) if math.isfinite(size)]
    if len(pairs) < _MIN_LAYERS or not all(size > 0 for _, size in pairs):
        return None
    first, last = pairs[0][1], pairs[-1][1]
    decay = (first / last) ** (1 / (len(pairs) - 1))
    if first / last > _VANISHED or decay > _DECAY:
        return None
    shrinking = sum(1 for (_, a), (_, b) in itertools.pairwise(pairs) if a < b)
    if shrinking < 0.8 * (len(pairs) - 1):
        return None
    layer = pairs[0][0]
    return finding_at(
        layer,
        "vanishing-gradients",
        phase="backward",
        title="gradients vanish on their way to the first layer",
        why=f"a gradient element of {layer.weight.name} is {format_short(first / last)} times as large as one of "
        f"{pairs[-1][0].weight.name}: each of the {len(pairs) - 1} layers between them multiplies it by "
        f"{format_short(decay)}",
        fix="use ReLU or GELU instead of sigmoid or tanh, initial values with the matching gain, residual "
        "connections, or normalization layers",
        evidence=_evidence([layer for layer, _ in pairs], [size for _, size in pairs]),
    )


def _std(layer: Layer) -> str:
    return "unknown" if layer.weight.std is None else format_short(layer.weight.std)


def _evidence(layers: Sequence[Layer], sizes: Sequence[float]) -> tuple[JsonValue, ...]:
    return tuple({"site": layer.site, "size": size} for layer, size in zip(layers, sizes, strict=False))
