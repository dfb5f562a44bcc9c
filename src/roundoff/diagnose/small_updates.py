"""The rule for updates that narrow weights are too coarse to take."""

from __future__ import annotations

import math
from typing import Any

from roundoff.diagnose.numbers import FORMATS, eps_of, short
from roundoff.runs import Finding, JsonValue, Run, Severity

_FEW = 0.08
"""Fewer weights than this that change, of those that have a gradient, are those close to 0."""
_NUM_STEPS = 20
_LEAST_STEPS = 3


def updates_below_ulp(run: Run) -> list[Finding]:
    """Find weights in a narrow format that have gradients and hardly ever change, though the learning rate is not 0.

    Only the first steps count, in which there is something to learn, and of a warm-up the end.
    """
    narrow = _narrow_parameters(run)
    rows = _rows(run, narrow) if narrow else []
    steps = {row["step"] for row in rows}
    if len(steps) < _LEAST_STEPS:
        return []
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["parameter"], []).append(row)
    changed = {name: _changed(of_name) for name, of_name in by_name.items()}
    share = _changed(rows)
    return [_finding(rows, changed, share, narrow)] if share < _FEW else []


def _narrow_parameters(run: Run) -> dict[str, str]:
    """Return the dtypes of the narrow parameters that an optimizer holds itself."""
    found: dict[str, str] = {}
    for structure in run.structures():
        for fact in structure.parameters:
            if fact.name is not None and fact.optimizers and fact.dtype in FORMATS and "16" in fact.dtype:
                found[fact.name] = fact.dtype
    return found


def _rows(run: Run, narrow: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of steps whose learning rate is at least half of the highest."""
    rates = {metric.step: metric.lr for metric in run.metrics() if metric.lr and not metric.skipped}
    highest = max(rates.values(), default=0.0)
    steps = [step for step, rate in rates.items() if rate >= highest / 2][:_NUM_STEPS]
    table = run.parameters(step=steps, rank=0).to_pylist() if steps else []
    return [
        row
        for row in table
        if row["parameter"] in narrow and row["changed_fraction"] is not None and math.isfinite(row["grad_l2"])
    ]


def _changed(rows: list[dict[str, Any]]) -> float:
    """Return the share of elements that changed, of those with a gradient, over parameters and steps."""
    having = [(row["num_elements"] * (1 - row["grad_zero_share"]), row["changed_fraction"]) for row in rows]
    return math.fsum(count * share for count, share in having) / max(math.fsum(count for count, _ in having), 1.0)


def _finding(rows: list[dict[str, Any]], changed: dict[str, float], share: float, narrow: dict[str, str]) -> Finding:
    sizes = {row["parameter"]: row["num_elements"] for row in rows}
    worst = max(sizes, key=lambda name: (1 - changed[name]) * sizes[name])
    first = min((row for row in rows if row["parameter"] == worst), key=lambda row: row["step"])
    name = FORMATS[narrow[worst]]
    typical = first["l2"] / math.sqrt(first["num_elements"])
    gap = typical * eps_of(narrow[worst])
    evidence: dict[str, JsonValue] = {
        parameter: changed[parameter] for parameter in sorted(changed, key=changed.__getitem__)
    }
    return Finding(
        rule="update-below-ulp",
        severity=Severity.ERROR,
        confidence=0.95,
        step=first["step"],
        rank=0,
        phase="optimizer",
        site=first["site"],
        parameter=worst,
        title=f"updates are too small for {name} weights",
        why=f"of the weights with a gradient only {share:.1%} change in a step ({changed[worst]:.1%} of {worst}): "
        f"their typical size is {short(typical)}, where {name} has steps of {short(gap)}, and smaller updates round to "
        "nothing",
        fix='keep fp32 master weights:  apply_recipe(model, optimizer, "O2")\n'
        "or round weights stochastically, or use a larger learning rate",
        evidence=({"changed_fraction": evidence},),
    )
