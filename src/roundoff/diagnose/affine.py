"""The rule for networks without a nonlinearity: several layers that together are one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from roundoff.diagnose.layers import Layer, forward_ops, layers_of
from roundoff.diagnose.numbers import listed
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.step_ops import StepOp

_AFFINE = frozenset({
    "mm", "addmm", "convolution", "linear", "mkldnn_linear", "add", "sub", "sum", "mean", "cat", "stack", "clone",
    "copy", "_to_copy", "embedding", "avg_pool2d", "avg_pool1d", "_adaptive_avg_pool2d", "native_batch_norm",
    "_native_batch_norm_legit", "_batch_norm_with_update", "native_dropout", "bernoulli", "constant_pad_nd", "detach",
    "zeros", "ones", "arange", "fill", "zero", "contiguous", "_unsafe_view", "randn", "rand", "div",
})  # fmt: skip
"""Ops that are affine in what they are given, or make constants. A division is, as long as its divisor is a number."""


def affine_networks(run: Run) -> list[Finding]:
    """Find models whose layers follow each other with nothing but affine ops between them; one layer alone is fine."""
    ops = forward_ops(run)
    layers = layers_of(run, ops)
    if len(layers) < 2:
        return []
    last = layers[-1].op.first.order
    between = [op for op in ops if op.first.order < last]
    if not all(_is_affine(op, between) for op in between) or not _are_redundant(layers):
        return []
    sites = [layer.site for layer in layers]
    return [
        Finding(
            rule="affine-network",
            severity=Severity.WARNING,
            confidence=0.9,
            step=0,
            phase="forward",
            site=sites[0],
            source=layers[0].result.source,
            title=f"{len(sites)} layers without a nonlinearity between them",
            why=f"{listed(sites, most=6)}: every op from the first to the last of them is affine, so that together "
            "they can learn no more than a single layer",
            fix="put a nonlinearity between the layers, such as nn.ReLU() or nn.GELU()",
            evidence=({"sites": list(sites)}, {"ops": sorted({op.bare for op in between})}),
        )
    ]


def _is_affine(op: StepOp, ops: Sequence[StepOp]) -> bool:
    if op.bare == "mul":  # dropout multiplies by a mask; two activations that are multiplied are no affine thing
        site = op.first.site
        return any(other.bare == "bernoulli" and other.first.site == site for other in ops)
    if op.bare == "div":
        return len(op.inputs) < 2
    return op.bare in _AFFINE


def _are_redundant(layers: Sequence[Layer]) -> bool:
    """Say whether some pair is wider than a bottleneck: narrow ones are factors of a matrix, on purpose."""
    shapes = [layer.weight.shape for layer in layers]
    return any(first[0] >= min(first[1], second[0]) for first, second in itertools.pairwise(shapes))
