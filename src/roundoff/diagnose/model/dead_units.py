"""The rule for units that no sample ever gets through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from roundoff.diagnose.layers import PRODUCTS, first_rank, forward_ops
from roundoff.diagnose.parameter_histories import ParameterHistory, first_histories
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, ParameterFacts, Run, Severity
from roundoff.runs.records.step_ops import StepOp
from roundoff.words import plural

_GATES = frozenset({"relu", "threshold", "clamp_min", "clamp", "hardtanh", "gelu", "hardswish", "relu6"})
_LEAST_STEPS = 5
_MOST_UNITS = 0.9
"""In deep networks with torch's own start values half of the units of a late layer may rest at the start."""
_LEAST_SAMPLES = 16


def dead_units(run: Run) -> list[Finding]:
    """Find gates that give 0 for every sample of every watched step.

    Half of a ReLU's results are 0 in a healthy network, and now and then a unit rests for a batch. Dead is a layer all
    of whose results are 0 in the recorded steps, and whose gradients are exactly 0 in all watched ones; or one where
    in each of the watched steps most units got no gradient from any sample.
    """
    histories = first_histories(run)
    looks = run.structures(rank=first_rank(run))
    ops = forward_ops(run)
    if not looks or not any(_is_learning(history) for history in histories.values()):
        return []
    later = {(op.first.site, op.first.op_name): op for op in forward_ops(run, step=1)}
    owned = [p for p in looks[0].parameters if p.name in histories and p.requires_grad]
    partly = []
    for sites, gate in _gates(ops):
        again = later.get((gate.first.site, gate.first.op_name), gate)
        before = [p for p in owned if p.site in sites]
        share = _dead_share(before, histories)
        if share == 1.0 and _is_zero(gate) and _is_zero(again):
            return [_finding(gate, before, histories, share=share)]
        if _MOST_UNITS <= share < 1.0 and _num_samples(gate) >= _LEAST_SAMPLES:
            partly.append(_finding(gate, before, histories, share=share))
    return partly[:1]


def _gates(ops: Sequence[StepOp]) -> Iterator[tuple[set[str], StepOp]]:
    """Give each gate with the sites from the product before it on, in order."""
    sites: set[str] = set()
    for op in ops:
        if op.bare in PRODUCTS:
            sites = {op.first.site}
        elif op.bare in _GATES and sites:
            yield sites, op
            sites = set()
        elif sites:
            sites.add(op.first.site)


def _is_zero(op: StepOp) -> bool:
    return op.outputs[0].num_zero == op.outputs[0].num_elements > 1


def _is_learning(history: ParameterHistory) -> bool:
    return bool((np.nan_to_num(history.gradient) > 0).any())


def _dead_share(before: Sequence[ParameterFacts], histories: Mapping[str, ParameterHistory]) -> float:
    """Return the share of units that got no gradient in any watched step, as far as shares per step can tell."""
    found = []
    for parameter in before:
        history = histories[str(parameter.name)]
        known = history.zero_share[np.isfinite(history.zero_share)]
        if len(known) >= _LEAST_STEPS and (len(parameter.shape) == 1 or (known == 1).all()):
            found.append(float(known.min()))
    return min(found, default=0.0)


def _num_samples(op: StepOp) -> int:
    shape = op.outputs[0].shape
    return shape[0] if shape else 0


def _finding(
    gate: StepOp, before: Sequence[ParameterFacts], histories: Mapping[str, ParameterHistory], *, share: float
) -> Finding:
    at = gate.first
    biggest = max(before, key=lambda p: p.absmax or 0.0)
    num_steps = len(histories[str(biggest.name)].steps)
    reach = f"; its input reaches at most {format_short(gate.inputs[0].max)}" if gate.inputs else ""
    units = "every result" if share == 1.0 else f"the results of at least {share:.0%} of the units"
    return Finding(
        rule="dead-units",
        severity=Severity.ERROR,
        confidence=0.95 if share == 1.0 else 0.85,
        step=0,
        phase="forward",
        site=at.site,
        op=at.op_name,
        parameter=biggest.name,
        source=at.source,
        title="dead units: nothing gets through" if share == 1.0 else f"{share:.0%} of the units are dead",
        why=f"{units} of this {gate.bare} of {at.num_elements} numbers a step {'is' if share == 1.0 else 'are'} 0 for "
        f"all samples{reach}; in {plural(num_steps, 'watched step')} the gradients of {before[0].site} show it, too",
        fix=f"look at the start values of {biggest.name}"
        + (f" (mean {format_short(biggest.mean)})" if biggest.mean is not None else "")
        + ": a bias near 0, weights at random; or a leaky gate",
        evidence=({"share": share, "steps": num_steps, "parameters": [p.name for p in before]},),
    )
