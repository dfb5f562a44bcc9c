"""The rule for norms whose weights melt away under weight decay."""

from __future__ import annotations

import math

import numpy as np

from roundoff.diagnose.parameter_histories import ParameterHistory, parameter_histories
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Metrics, Run, Severity, Structure

_LEFT = 0.8
"""A norm's weights that are still this much of what they were are no fault."""
_EXPLAINED = 0.6
"""Decay that explains this much of the loss, as a logarithm, is its cause."""
_STRONG = 0.1
"""Weight decay from here on is strong in itself; below it must outweigh the gradient."""


def decaying_norms(run: Run) -> list[Finding]:
    """Find norms whose weights shrink step by step by what weight decay takes, with nothing that holds against it."""
    structures = run.structures()
    decay = max((_decay(structure) for structure in structures), default=0.0)
    if not decay:
        return []
    norms = [
        fact.name for s in structures[:1] for fact in s.parameters if fact.mean == 1 and fact.std == 0 and fact.name
    ]
    metrics = [metric for metric in run.metrics() if metric.lr is not None and not metric.skipped]
    histories = parameter_histories(run, 0, names=norms) if norms else {}
    melting = [norm for norm in histories.values() if len(norm.steps) > 2 and _melts(norm, metrics, decay)]
    return [_finding(melting, len(norms), metrics, decay)] if melting else []


def _decay(structure: Structure) -> float:
    groups = [group for optimizer in structure.optimizers for group in optimizer.groups]
    values = [group.get("weight_decay") for group in groups]
    return max((float(value) for value in values if isinstance(value, (int, float))), default=0.0)


def _melts(norm: ParameterHistory, metrics: list[Metrics], decay: float) -> bool:
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


def _finding(melting: list[ParameterHistory], num_norms: int, metrics: list[Metrics], decay: float) -> Finding:
    norm = melting[0]
    step, first, last = int(norm.steps[0]), float(norm.norm[0]), float(norm.norm[-1])
    rate = next((metric.lr for metric in metrics if metric.step == step), metrics[0].lr) or 0.0
    gradients = norm.gradient[~np.isnan(norm.gradient)]
    against = f", where its gradient is {format_short(float(np.median(gradients)))}" if gradients.size else ""
    return Finding(
        rule="norm-weight-decay",
        severity=Severity.ERROR,
        confidence=0.9,
        step=step,
        rank=0,
        phase="optimizer",
        site=norm.site,
        parameter=norm.name,
        title="weight decay melts the norms",
        why=f"the norm of {norm.name} falls from {format_short(first)} to {format_short(last)} in "
        f"{norm.steps[-1] - step} steps, by {rate * decay:.2g} of itself in each, as learning rate {rate:.3g} "
        f"times weight decay {decay:g} makes it; the decay's part is {format_short(decay * first)}{against}. So do "
        f"{len(melting)} of {num_norms} norms",
        fix="leave norms and biases out of weight decay: a second group of the optimizer with weight_decay=0 for "
        "parameters with one dimension; and use a smaller one elsewhere, 0.01 to 0.1",
        evidence=({"first_l2": first, "last_l2": last, "weight_decay": decay, "lr": rate},),
    )
