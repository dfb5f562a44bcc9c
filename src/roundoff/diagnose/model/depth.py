"""The rules for what depth does to numbers: gradients that vanish towards the first layer, activations that explode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from roundoff.diagnose.layers import Layer, finding_at, forward_ops, layers_of, root_mean_square
from roundoff.diagnose.parameter_histories import first_histories
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, JsonValue, Run

DEPTH_CODES = ("exploding-activations", "vanishing-gradients")
_LEAST_LAYERS = 4
_VANISHED = 1e-5
_DECAY = 0.3
"""Per layer; plain deep networks with torch's own start values lose about 0.4 a layer, and still learn."""
_EXPLODED = 1e3
_GROWTH = 1.5


def numbers_by_depth(run: Run) -> list[Finding]:
    """Find gradients that decay, and activations that grow, by a factor with every layer."""
    layers = layers_of(run, forward_ops(run))
    return [*_exploding(layers), *_vanishing(run, layers)]


def _exploding(layers: Sequence[Layer]) -> list[Finding]:
    sizes = [root_mean_square(layer.result) for layer in layers]
    if len(sizes) < _LEAST_LAYERS or not all(math.isfinite(size) and size > 0 for size in sizes[:1]):
        return []
    finite = [size for size in sizes if math.isfinite(size)]
    last = max(range(len(finite)), key=lambda place: finite[place])
    if last + 1 < _LEAST_LAYERS:
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
            why=f"at step 0 they are of size {format_short(finite[0])} after {first.site} and "
            f"{format_short(finite[last])} after "
            f"{layers[last].site}, {last} layers on; the weights there have a standard deviation of "
            f"{_std(layers[last])}",
            fix="start weights smaller, with a variance of 2 / inputs for ReLU (nn.init.kaiming_normal_), or put norms "
            "between the layers",
            evidence=_evidence(layers[: last + 1], finite),
        )
    ]


def _vanishing(run: Run, layers: Sequence[Layer]) -> list[Finding]:
    histories = first_histories(run)
    known = [layer for layer in layers if layer.weight.name in histories]
    sizes = [histories[str(layer.weight.name)].root_mean_square for layer in known]
    pairs = [(layer, size) for layer, size in zip(known, sizes, strict=True) if math.isfinite(size)]
    if len(pairs) < _LEAST_LAYERS or not all(size > 0 for _, size in pairs):
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
            f"{pairs[-1][0].weight.name}: each of the {len(pairs) - 1} layers between leaves "
            f"{format_short(decay)} of it",
            fix="use ReLU or GELU instead of sigmoid or tanh, start values with the matching gain, residual "
            "connections, or norms",
            evidence=_evidence([layer for layer, _ in pairs], [size for _, size in pairs]),
        )
    ]


def _std(layer: Layer) -> str:
    return "unknown" if layer.weight.std is None else format_short(layer.weight.std)


def _evidence(layers: Sequence[Layer], sizes: Sequence[float]) -> tuple[JsonValue, ...]:
    return tuple({"site": layer.site, "size": size} for layer, size in zip(layers, sizes, strict=False))
