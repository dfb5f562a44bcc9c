"""Gradients and updates that are too small for their format."""

from __future__ import annotations

import math
from typing import Any

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import FIRST_STEPS, ParameterHistory, parameter_histories
from roundoff.diagnose.rule import Code, FaultEffect, error, rule
from roundoff.diagnose.wording import FORMATS, eps_of, format_short
from roundoff.runs import Finding, JsonValue, Run, WideProbe

_MIN_CHANGED = 0.08
"""If fewer weights with a gradient change, only those close to 0 do."""
_NUM_STEPS = 20
_MIN_STEPS = 3


@rule(
    Code(
        name="update-below-ulp",
        means="Weights in a narrow format have gradients but do not change: the updates are smaller than half the "
        "distance to the next representable number.",
        fix='Keep fp32 master weights, `apply_recipe(model, optimizer, "O2")`, or use stochastic rounding for the '
        "weights.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=960,
    checks="updates too small for the weights' format",
    needs=[
        needs.structure,
        needs.some(lambda run: _narrow_parameters(run), "no optimizer holds weights in a 16-bit format"),
        needs.measured_parameters,
    ],
)
def updates_below_ulp(run: Run) -> Finding | None:
    """Find weights in a narrow format that have gradients but hardly change, although the learning rate is not 0.

    Only the first steps count, in which there is something to learn; of a warm-up, only its end.
    """
    narrow = _narrow_parameters(run)
    rows = _rows(run, narrow) if narrow else []
    steps = {row["step"] for row in rows}
    if len(steps) < _MIN_STEPS:
        return None
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["parameter"], []).append(row)
    changed = {name: _changed_share(of_name) for name, of_name in by_name.items()}
    share = _changed_share(rows)
    return _small_update_finding(rows, changed, share, narrow) if share < _MIN_CHANGED else None


def _narrow_parameters(run: Run) -> dict[str, str]:
    """Return the dtypes of the narrow parameters that an optimizer holds itself."""
    found: dict[str, str] = {}
    for structure in run.structures():
        for fact in structure.parameters:
            if fact.name is not None and fact.optimizers and fact.dtype in FORMATS and "16" in fact.dtype:
                found[fact.name] = fact.dtype
    return found


def _rows(run: Run, narrow: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of the first steps whose learning rate is at least half of the highest of their optimizers."""
    held = [fact for look in run.structures() for fact in look.parameters if fact.name in narrow]
    holders = {name for fact in held for name in fact.optimizers}
    metrics = [metric for metric in run.metrics() if metric.lr and not metric.skipped]
    own = [metric for metric in metrics if metric.optimizer in holders] or metrics
    highest = max((metric.lr or 0.0 for metric in own), default=0.0)
    steps = [metric.step for metric in own if (metric.lr or 0.0) >= highest / 2]
    rows = [
        row
        for row in (run.parameters(step=steps, rank=0).to_list() if steps else [])
        if row["parameter"] in narrow and row["changed_fraction"] is not None and math.isfinite(row["grad_l2"])
    ]
    first = set(sorted({row["step"] for row in rows})[:_NUM_STEPS])
    return [row for row in rows if row["step"] in first]


def _changed_share(rows: list[dict[str, Any]]) -> float:
    """Return the share of elements that changed, of those with a gradient, over parameters and steps."""
    having = [(row["num_elements"] * (1 - row["grad_zero_share"]), row["changed_fraction"]) for row in rows]
    return math.fsum(count * share for count, share in having) / max(math.fsum(count for count, _ in having), 1.0)


def _small_update_finding(
    rows: list[dict[str, Any]], changed: dict[str, float], share: float, narrow: dict[str, str]
) -> Finding:
    sizes = {row["parameter"]: row["num_elements"] for row in rows}
    worst = max(sizes, key=lambda name: (1 - changed[name]) * sizes[name])
    first = min((row for row in rows if row["parameter"] == worst), key=lambda row: row["step"])
    name = FORMATS[narrow[worst]]
    typical = first["l2"] / math.sqrt(first["num_elements"])
    gap = typical * eps_of(narrow[worst])
    evidence: dict[str, JsonValue] = {
        parameter: changed[parameter] for parameter in sorted(changed, key=changed.__getitem__)
    }
    return error(
        rule="update-below-ulp",
        confidence=0.95,
        step=first["step"],
        rank=0,
        phase="optimizer",
        site=first["site"],
        parameter=worst,
        title=f"updates are too small for {name} weights",
        why=f"only {share:.1%} of the weights with a gradient change per step ({changed[worst]:.1%} of {worst}): their "
        f"typical size is {format_short(typical)}, where the numbers of {name} are {format_short(gap)} apart, and "
        "updates below half of that have no effect",
        fix='keep fp32 master weights:  apply_recipe(model, optimizer, "O2")\n'
        "or use stochastic rounding for the weights, or a larger learning rate",
        evidence=({"changed_fraction": evidence},),
    )


_MORE_ZEROS = 0.25
"""The share of gradient elements that are 0 here, but not in a wide replay, that counts as a fault."""
_MANY_SUBNORMAL = 0.5
"""Without a wide replay: the share of nonzero elements that are subnormal in the first steps."""


@rule(
    Code(
        name="gradient-underflow",
        means="Many gradient elements are 0 in their format but would not be in a wide one. Their weights get no "
        "signal from the loss.",
        fix="Scale the loss: `torch.amp.GradScaler`, or a recipe that does so; or use bf16, which has the range of "
        "fp32.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
        follows_from=("consumed-overflow", "saturated-softmax"),
    ),
    order=950,
    checks="gradients too small for their format",
    needs=[needs.measured_parameters],
)
def underflowing_gradients(run: Run) -> Finding | None:
    """Find a training in which many gradient elements are 0 that would not be in a wide format.

    The wide replay decides; without one, gradients that are mostly subnormal do.
    """
    probes = [probe for probe in run.probes(WideProbe) if probe.parameters]
    return _compare_with_wide(run, probes[0]) if probes else _find_subnormal(run)


def _compare_with_wide(run: Run, probe: WideProbe) -> Finding | None:
    histories = parameter_histories(run, 0, names=[row.name for row in probe.parameters])
    known = [row for row in probe.parameters if row.name in histories]
    total = sum(histories[row.name].num_elements for row in known)
    if not total:
        return None
    zero, wide, subnormal = (
        math.fsum(share * histories[row.name].num_elements for row, share in zip(known, shares, strict=True)) / total
        for shares in zip(*((row.zero_share, row.wide_zero_share, row.subnormal_share) for row in known), strict=True)
    )
    if zero - wide < _MORE_ZEROS:
        return None
    worst = max(known, key=lambda row: (row.zero_share - row.wide_zero_share) * histories[row.name].num_elements)
    history = histories[worst.name]
    why = (
        f"{zero:.0%} of all gradient elements are 0, and {subnormal:.0%} subnormal; in a wide replay of the same step "
        f"{wide:.0%} are 0 ({worst.name}: {worst.zero_share:.0%}, wide {worst.wide_zero_share:.0%})"
    )
    since = _first_step(history, (worst.zero_share + worst.wide_zero_share) / 2, probe.step)
    return _underflow_finding(since, history.site, history.name, why, 0.95, {"zero": zero, "wide_zero": wide})


def _first_step(history: ParameterHistory, share: float, step: int) -> int:
    """Return the first measured step in which at least this share of a parameter's gradient was 0."""
    return int(min(history.steps[history.zero_share >= share], default=step))


def _find_subnormal(run: Run) -> Finding | None:
    rows = [
        row
        for row in run.parameters(step=FIRST_STEPS, rank=0).to_list()
        if row["grad_subnormal_share"] is not None and row["grad_zero_share"] is not None
    ]
    having = math.fsum((1 - row["grad_zero_share"]) * row["num_elements"] for row in rows)
    subnormal = math.fsum(row["grad_subnormal_share"] * row["num_elements"] for row in rows)
    if not having or subnormal / having < _MANY_SUBNORMAL:
        return None
    total = sum(row["num_elements"] for row in rows)
    worst = max(rows, key=lambda row: (row["grad_zero_share"] + row["grad_subnormal_share"]) * row["num_elements"])
    zero = 1 - having / total
    why = (
        f"{subnormal / having:.0%} of the gradient elements that are not 0 are subnormal in their format, and "
        f"{zero:.0%} of all are 0 already"
    )
    return _underflow_finding(worst["step"], worst["site"], worst["parameter"], why, 0.8, {"zero": zero})


def _underflow_finding(
    step: int, site: str, parameter: str, why: str, confidence: float, measured: dict[str, JsonValue]
) -> Finding:
    return error(
        rule="gradient-underflow",
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
