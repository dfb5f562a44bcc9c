"""Normalization weights that shrink under weight decay."""

from __future__ import annotations

import math

import numpy as np

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import ParameterHistory, parameter_histories
from roundoff.diagnose.rule import Code, error, rule
from roundoff.diagnose.step_flow import forward_ops
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Metrics, ParameterFacts, Run, Structure

_NORMALIZE = frozenset({
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm",
    "rsqrt",
})  # fmt: skip
_LEFT = 0.8
"""Weights that keep at least this fraction of their size are fine."""
_EXPLAINED = 0.6
"""Weight decay is the cause if it explains at least this share of the shrinking, as a logarithm."""
_STRONG = 0.1
"""Weight decay from here on is strong by itself; a weaker one must outweigh the gradient."""


@rule(
    Code(
        name="norm-weight-decay",
        means="Weight decay shrinks the weights of normalization layers step by step, and no gradient counteracts it.",
        fix="Exclude normalization layers and biases from weight decay: a second parameter group with "
        "`weight_decay=0`.",
    ),
    order=970,
    checks="normalization weights under weight decay",
    needs=[
        needs.structure,
        needs.some(lambda run: any(map(_decay, run.structures())), "no optimizer uses weight decay"),
        needs.some(lambda run: _normalization_weights(run), "the model has no normalization weights"),
        needs.measured_parameters,
    ],
)
def decaying_norms(run: Run) -> Finding | None:
    """Find normalization layers whose weights shrink by the weight decay of each step, with no gradient against it."""
    structures = run.structures()
    decay = max((_decay(structure) for structure in structures), default=0.0)
    if not decay:
        return None
    norms = _normalization_weights(run)
    metrics = [metric for metric in run.metrics() if metric.lr is not None and not metric.skipped]
    histories = parameter_histories(run, 0, names=norms) if norms else {}
    shrinking = [norm for norm in histories.values() if len(norm.steps) > 2 and _shrinks(norm, metrics, decay)]
    return _finding(shrinking, len(norms), metrics, decay) if shrinking else None


def _normalization_weights(run: Run) -> list[str]:
    """Return the scales of normalization layers, and other parameters that start at 1 everywhere.

    A layer is known by its kind or by the ops in it; one that was loaded has scales of any size, mostly above 0.
    """
    structures = run.structures()
    sites = {module.site for look in structures for module in look.modules if "norm" in module.kind.lower()}
    sites |= {op.first.site for op in forward_ops(run) if op.bare in _NORMALIZE and "<" not in op.first.site}
    facts = {fact.name: fact for structure in structures for fact in reversed(structure.parameters)}
    return [name for name, fact in facts.items() if name and (_starts_at_one(fact) or _is_scale(fact, sites))]


def _starts_at_one(fact: ParameterFacts) -> bool:
    return fact.mean == 1 and fact.std == 0


def _is_scale(fact: ParameterFacts, sites: set[str]) -> bool:
    is_flat = len(fact.shape) - fact.shape.count(1) <= 1
    return fact.site in sites and is_flat and fact.mean is not None and fact.mean > (fact.std or 0.0)


def _decay(structure: Structure) -> float:
    groups = [group for optimizer in structure.optimizers for group in optimizer.groups]
    values = [group.get("weight_decay") for group in groups]
    return max((float(value) for value in values if isinstance(value, (int, float))), default=0.0)


def _shrinks(norm: ParameterHistory, metrics: list[Metrics], decay: float) -> bool:
    first, last = norm.norm[0], norm.norm[-1]
    if not first or not math.isfinite(last) or last > _LEFT * first:
        return False
    measured = math.log(max(last, 1e-300) / first)
    rates = [metric.lr or 0.0 for metric in metrics if norm.steps[0] < metric.step <= norm.steps[-1]]
    predicted = math.fsum(math.log(max(1 - rate * decay, 1e-3)) for rate in rates)
    if predicted >= 0 or measured > _EXPLAINED * predicted:
        return False
    return decay >= _STRONG or _outweighs_gradient(norm, decay)


def _outweighs_gradient(norm: ParameterHistory, decay: float) -> bool:
    has = ~np.isnan(norm.gradient)
    return bool(has.any()) and float(np.median((decay * norm.norm - norm.gradient)[has])) > 0


def _finding(shrinking: list[ParameterHistory], num_norms: int, metrics: list[Metrics], decay: float) -> Finding:
    norm = shrinking[0]
    step, first, last = int(norm.steps[0]), float(norm.norm[0]), float(norm.norm[-1])
    rate = next((metric.lr for metric in metrics if metric.step == step), metrics[0].lr) or 0.0
    gradients = norm.gradient[~np.isnan(norm.gradient)]
    against = f", while its gradient has the norm {format_short(float(np.median(gradients)))}" if gradients.size else ""
    return error(
        rule="norm-weight-decay",
        confidence=0.9,
        step=step,
        rank=0,
        phase="optimizer",
        site=norm.site,
        parameter=norm.name,
        title="weight decay shrinks the normalization weights",
        why=f"the norm of {norm.name} falls from {format_short(first)} to {format_short(last)} in "
        f"{norm.steps[-1] - step} steps, by {rate * decay:.2g} of itself per step, which is the learning rate "
        f"{rate:.3g} times the weight decay {decay:g}; the decay term has the norm {format_short(decay * first)}"
        f"{against}. This holds for {len(shrinking)} of {num_norms} normalization layers",
        fix="exclude normalization layers and biases from weight decay: a second parameter group with weight_decay=0 "
        "for parameters with one dimension; and use a smaller value elsewhere, 0.01 to 0.1",
        evidence=({"first_l2": first, "last_l2": last, "weight_decay": decay, "lr": rate},),
    )
