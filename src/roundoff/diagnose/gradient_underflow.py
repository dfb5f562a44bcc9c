"""The rule for gradients that are too small for their format and became 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from roundoff.diagnose.histories import FIRST_STEPS, ParameterHistory, parameter_histories
from roundoff.runs import Finding, JsonValue, Run, Severity

_MORE_ZEROS = 0.25
"""So many gradient elements that are 0 here and not in a wide replay are a fault."""
_MANY_SUBNORMAL = 0.5
"""Where nobody looked wider: of the elements that are not 0 so many are subnormal, in the first steps."""


def underflowing_gradients(run: Run) -> list[Finding]:
    """Find a training in which many gradient elements are 0 that would not be in a wide format.

    The wide replay decides; without one, gradients that are subnormal for the most part do.
    """
    probes = [probe for probe in run.probes() if probe.get("probe") == "wide" and probe.get("parameters")]
    if probes:
        return [finding for probe in probes[:1] for finding in _against_wide(run, probe)]
    return _mostly_subnormal(run)


def _against_wide(run: Run, probe: Mapping[str, JsonValue]) -> list[Finding]:
    step = int(probe.get("step") or 0)  # type: ignore[arg-type]
    rows: list[Any] = [row for row in probe["parameters"] if isinstance(row, dict)]  # type: ignore[union-attr]
    histories = parameter_histories(run, 0, names=[row["name"] for row in rows])
    known = [row for row in rows if row["name"] in histories]
    total = sum(histories[row["name"]].num_elements for row in known)
    if not total:
        return []
    zero, wide, subnormal = (
        math.fsum((row[key] or 0.0) * histories[row["name"]].num_elements for row in known) / total
        for key in ("zero_share", "wide_zero_share", "subnormal_share")
    )
    if zero - wide < _MORE_ZEROS:
        return []
    worst = max(
        known, key=lambda row: (row["zero_share"] - row["wide_zero_share"]) * histories[row["name"]].num_elements
    )
    history = histories[worst["name"]]
    why = (
        f"{zero:.0%} of all gradient elements are 0, and {subnormal:.0%} subnormal; in a wide replay of the same step "
        f"{wide:.0%} are 0 ({worst['name']}: {worst['zero_share']:.0%}, wide {worst['wide_zero_share']:.0%})"
    )
    since = _first_step(history, (worst["zero_share"] + worst["wide_zero_share"]) / 2, step)
    return [_finding(since, history.site, history.name, why, 0.95, {"zero": zero, "wide_zero": wide})]


def _first_step(history: ParameterHistory, share: float, step: int) -> int:
    """Return the first measured step in which as large a share of a parameter's gradient was 0 already."""
    return int(min(history.steps[history.zero_share >= share], default=step))


def _mostly_subnormal(run: Run) -> list[Finding]:
    rows = [
        row
        for row in run.parameters(step=FIRST_STEPS, rank=0).to_pylist()
        if row["grad_subnormal_share"] is not None and row["grad_zero_share"] is not None
    ]
    having = math.fsum((1 - row["grad_zero_share"]) * row["num_elements"] for row in rows)
    subnormal = math.fsum(row["grad_subnormal_share"] * row["num_elements"] for row in rows)
    if not having or subnormal / having < _MANY_SUBNORMAL:
        return []
    total = sum(row["num_elements"] for row in rows)
    worst = max(rows, key=lambda row: (row["grad_zero_share"] + row["grad_subnormal_share"]) * row["num_elements"])
    zero = 1 - having / total
    why = (
        f"{subnormal / having:.0%} of the gradient elements that are not 0 are subnormal in their format, and "
        f"{zero:.0%} of all are 0 already"
    )
    return [_finding(worst["step"], worst["site"], worst["parameter"], why, 0.8, {"zero": zero})]


def _finding(
    step: int, site: str, parameter: str, why: str, confidence: float, measured: dict[str, JsonValue]
) -> Finding:
    return Finding(
        rule="gradient-underflow",
        severity=Severity.ERROR,
        confidence=confidence,
        step=step,
        rank=0,
        phase="backward",
        site=site,
        parameter=parameter,
        title="gradients are too small for their format",
        why=why,
        fix='scale the loss: torch.amp.GradScaler, or a recipe that does:  apply_recipe(model, optimizer, "O2")',
        evidence=(measured,),
    )
