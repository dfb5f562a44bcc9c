"""Numbers that change with depth: gradients that vanish towards the first layer, activations that explode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.layers import Layer, finding_at, forward_ops, layers_of, root_mean_square
from roundoff.diagnose.parameter_histories import first_histories
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, JsonValue, Run

_MIN_LAYERS = 4
_VANISHED = 1e-5
_DECAY = 0.3
"""Per layer; plain deep networks with torch's default initial values keep about 0.4 per layer, and still learn."""
_EXPLODED = 1e3
_GROWTH = 1.5


def numbers_by_depth(run: Run) -> list[Finding]:
    """Find gradients that shrink, and activations that grow, by a constant factor per layer."""
    layers = layers_of(run, forward_ops(run))
    return [*_find_exploding(layers), *_find_vanishing(run, layers)]


def _find_exploding(layers: Sequence[Layer]) -> list[Finding]:
    sizes = [root_mean_square(layer.result) for layer in layers]
    if len(sizes) < _MIN_LAYERS or not all(math.isfinite(size) and size > 0 for size in sizes[:1]):
        return []
    finite = [size for size in sizes if math.isfinite(size)]
    last = max(range(len(finite)), key=lambda place: finite[place])
    if last + 1 < _MIN_LAYERS:
        return []
    growth = (finite[last] / finite[0]) ** (1 / last)
    if finite[last] / finite[0] < _EXPLODED or growth < _GROWTH:
        return []
    first = layers[0]
    return [
        finding_at(
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
    ]


def _find_vanishing(run: Run, layers: Sequence[Layer]) -> list[Finding]:
    histories = first_histories(run)
    known = [layer for layer in layers if layer.weight.name in histories]
    sizes = [histories[str(layer.weight.name)].root_mean_square for layer in known]
    pairs = [(layer, size) for layer, size in zip(known, sizes, strict=True) if math.isfinite(size)]
    if len(pairs) < _MIN_LAYERS or not all(size > 0 for _, size in pairs):
        return []
    first, last = pairs[0][1], pairs[-1][1]
    decay = (first / last) ** (1 / (len(pairs) - 1))
    if first / last > _VANISHED or decay > _DECAY:
        return []
    shrinking = sum(1 for (_, a), (_, b) in itertools.pairwise(pairs) if a < b)
    if shrinking < 0.8 * (len(pairs) - 1):
        return []
    layer = pairs[0][0]
    return [
        finding_at(
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
    ]


def _std(layer: Layer) -> str:
    return "unknown" if layer.weight.std is None else format_short(layer.weight.std)


def _evidence(layers: Sequence[Layer], sizes: Sequence[float]) -> tuple[JsonValue, ...]:
    return tuple({"site": layer.site, "size": size} for layer, size in zip(layers, sizes, strict=False))


def _enough_layers(run: Run) -> str | None:
    num_layers = len(layers_of(run, forward_ops(run)))
    return None if num_layers >= _MIN_LAYERS else f"the model has fewer than {_MIN_LAYERS} layers"


RULES = (
    Rule(
        order=440,
        checks="activations and gradients that grow or shrink with depth",
        find=numbers_by_depth,
        needs=(needs.structure, needs.recorded_first_step, _enough_layers),
        codes=(
            Code(
                name="exploding-activations",
                means="From the first step on, activations grow by a constant factor with every layer.",
                detected="In the recorded step 0 the size of each layer's output is compared with that of the layer "
                "before: at least 1.5 times per layer, and a thousand times in total.",
                fix="Use smaller initial weights, with a variance of 2 / inputs for ReLU, or put normalization layers "
                "between the layers.",
            ),
            Code(
                name="vanishing-gradients",
                means="Gradients shrink by a constant factor with every layer on their way back, so the first layers "
                "do not learn.",
                detected="In the first steps the size of a gradient element is compared from layer to layer: below 0.3 "
                "times per layer, and below 1e-5 from the last to the first.",
                fix="Use ReLU or GELU instead of sigmoid or tanh, matching initial values, residual connections, or "
                "normalization layers.",
                leads_to=(Effect.STOPS_LEARNING,),
                follows_from=("zero-init", "symmetric-init", "dead-units", "constant-input"),
            ),
        ),
    ),
)
