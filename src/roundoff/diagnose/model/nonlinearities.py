"""Nonlinearities that are missing between layers, or applied twice before the loss."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.layers import Layer, first_rank, forward_ops, layers_of
from roundoff.diagnose.rule import Code, Rule
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.records.step_ops import StepOp
from roundoff.words import join_names

_TAKES_LOGITS = ("cross_entropy", "CrossEntropyLoss")


def doubled_softmax(run: Run) -> list[Finding]:
    """Find a softmax whose result goes through another softmax in the loss."""
    pair = next((pair for pair in _pairs(forward_ops(run))), None)
    rows = [facts for facts in run.inputs(rank=first_rank(run)) if facts.criterion in _TAKES_LOGITS]
    seen = [facts for facts in rows if facts.num_classes is not None and facts.num_classes > 1]
    sums_to_one = len(seen) >= 2 and all(facts.rows_sum_to_one for facts in seen)
    if pair is None and not sums_to_one:
        return []
    softmax = None if pair is None else pair[0].first
    return [
        Finding(
            rule="double-softmax",
            severity=Severity.ERROR,
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
    ]


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


def affine_networks(run: Run) -> list[Finding]:
    """Find models with only affine ops between their layers; a single layer is fine."""
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
            why=f"{join_names(sites, at_most=6)}: every op from the first to the last of them is affine, so together "
            "they can learn no more than a single layer",
            fix="put a nonlinearity between the layers, such as nn.ReLU() or nn.GELU()",
            evidence=({"sites": list(sites)}, {"ops": sorted({op.bare for op in between})}),
        )
    ]


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


def _cross_entropy(run: Run) -> str | None:
    rank = first_rank(run)
    if any(facts.criterion in _TAKES_LOGITS for facts in run.inputs(rank=rank)):
        return None
    ops = run.events(step=0, rank=rank, columns=["op"])["op"].unique().to_pylist()
    return None if any("_log_softmax" in op for op in ops) else "no cross entropy was seen"


def _several_layers(run: Run) -> str | None:
    return None if len(layers_of(run, forward_ops(run))) > 1 else "the model has fewer than 2 layers"


RULES = (
    Rule(
        order=410,
        checks="probabilities passed to a loss that expects logits",
        find=doubled_softmax,
        needs=(_cross_entropy,),
        codes=(
            Code(
                name="double-softmax",
                means="Probabilities are passed to a loss that expects logits. The loss cannot get close to 0, and the "
                "gradients are small.",
                fix="Pass the values before the softmax to the loss.",
            ),
        ),
    ),
    Rule(
        order=480,
        checks="layers without a nonlinearity between them",
        find=affine_networks,
        needs=(needs.structure, needs.recorded_first_step, _several_layers),
        codes=(
            Code(
                name="affine-network",
                means="Layers follow each other without a nonlinearity: together they can learn no more than a single "
                "layer.",
                fix="Put a nonlinearity between them, such as `nn.ReLU()`.",
            ),
        ),
    ),
)
