"""The rule for norms whose weights melt away under weight decay."""

from __future__ import annotations

import math
import statistics
from typing import Any

from roundoff.diagnose.numbers import short
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
    rows = [row for row in run.parameters(rank=0).to_pylist() if row["parameter"] in norms] if norms else []
    series = {name: sorted((r for r in rows if r["parameter"] == name), key=lambda r: r["step"]) for name in norms}
    melting = [of_norm for of_norm in series.values() if len(of_norm) > 2 and _melts(of_norm, metrics, decay)]
    return [_finding(melting, len(norms), metrics, decay)] if melting else []


def _decay(structure: Structure) -> float:
    groups = [group for optimizer in structure.optimizers for group in optimizer.groups]
    values = [group.get("weight_decay") for group in groups]
    return max((float(value) for value in values if isinstance(value, (int, float))), default=0.0)


def _melts(rows: list[dict[str, Any]], metrics: list[Metrics], decay: float) -> bool:
    first, last = rows[0], rows[-1]
    if not first["l2"] or not math.isfinite(last["l2"]) or last["l2"] > _LEFT * first["l2"]:
        return False
    measured = math.log(max(last["l2"], 1e-300) / first["l2"])
    rates = [metric.lr or 0.0 for metric in metrics if first["step"] < metric.step <= last["step"]]
    predicted = math.fsum(math.log(max(1 - rate * decay, 1e-3)) for rate in rates)
    if predicted >= 0 or measured > _EXPLAINED * predicted:
        return False
    return decay >= _STRONG or _outweighs_gradient(rows, decay)


def _outweighs_gradient(rows: list[dict[str, Any]], decay: float) -> bool:
    having = [row for row in rows if row["grad_l2"] is not None]
    return bool(having) and statistics.median(decay * row["l2"] - row["grad_l2"] for row in having) > 0


def _finding(melting: list[list[dict[str, Any]]], num_norms: int, metrics: list[Metrics], decay: float) -> Finding:
    first, last = melting[0][0], melting[0][-1]
    rate = next((metric.lr for metric in metrics if metric.step == first["step"]), metrics[0].lr) or 0.0
    gradients = [row["grad_l2"] for row in melting[0] if row["grad_l2"] is not None]
    against = f", where its gradient is {short(statistics.median(gradients))}" if gradients else ""
    return Finding(
        rule="norm-weight-decay",
        severity=Severity.ERROR,
        confidence=0.9,
        step=first["step"],
        rank=0,
        phase="optimizer",
        site=first["site"],
        parameter=first["parameter"],
        title="weight decay melts the norms",
        why=f"the norm of {first['parameter']} falls from {short(first['l2'])} to {short(last['l2'])} in "
        f"{last['step'] - first['step']} steps, by {rate * decay:.2g} of itself in each, as learning rate {rate:.3g} "
        f"times weight decay {decay:g} makes it; the decay's part is {short(decay * first['l2'])}{against}. So do "
        f"{len(melting)} of {num_norms} norms",
        fix="leave norms and biases out of weight decay: a second group of the optimizer with weight_decay=0 for "
        "parameters with one dimension; and use a smaller one elsewhere, 0.01 to 0.1",
        evidence=({"first_l2": first["l2"], "last_l2": last["l2"], "weight_decay": decay, "lr": rate},),
    )
