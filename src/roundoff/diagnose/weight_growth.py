"""The update that grew the weights before a value overflowed."""

from __future__ import annotations

import math
from typing import Any

import pyarrow.compute as pc

from roundoff.diagnose.bad_step import BadStep
from roundoff.diagnose.numbers import short
from roundoff.runs import Finding, Run, Severity

_NUM_STEPS = 20
"""An update so many measured steps before may still be the cause."""


def update_before(run: Run, bad: BadStep) -> Finding | None:
    """Return the finding about the latest update that was larger than the weights it changed; None without one."""
    known = pc.unique(run.parameters(rank=bad.rank)["step"]).to_pylist()
    measured = sorted(step for step in known if step < bad.step)[-_NUM_STEPS:]
    rows = run.parameters(step=measured, rank=bad.rank).to_pylist()
    whole = {step: math.hypot(*(row["l2"] for row in rows if row["step"] == step)) for step in measured}
    grown = [row for row in rows if _is_large(row, whole[row["step"]])]
    if not grown:
        return None
    worst = max(grown, key=lambda row: (row["step"], row["update_l2"] / row["l2"]))
    return Finding(
        rule="lr-too-high",
        severity=Severity.WARNING,
        confidence=0.7,
        step=worst["step"],
        rank=bad.rank,
        phase="optimizer",
        site=worst["site"],
        parameter=worst["parameter"],
        title=f"one update grew {worst['parameter']}",
        why=f"the update of step {worst['step']} has the norm {short(worst['update_l2'])}, and the parameter after it "
        f"{short(worst['l2'])}",
        fix="lower the learning rate, warm it up, or clip the gradients",
    )


def _is_large(row: dict[str, Any], whole: float) -> bool:
    """Say whether an update is half the parameter it leaves, and of weight in the model: biases begin at 0."""
    update = row["update_l2"]
    return update is not None and update > row["l2"] / 2 and update > whole / 4
