"""Units that output 0 for every sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from roundoff.diagnose import needs
from roundoff.diagnose.layers import PRODUCTS, first_rank, forward_ops
from roundoff.diagnose.parameter_histories import ParameterHistory, first_histories
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, ParameterFacts, Run, Severity
from roundoff.runs.records.step_ops import StepOp, bare_name
from roundoff.words import plural

_GATES = frozenset({"relu", "threshold", "clamp_min", "clamp", "hardtanh", "gelu", "hardswish", "relu6"})
_MIN_STEPS = 5
_MIN_DEAD_SHARE = 0.9
"""In deep networks with torch's default initial values, half of the units of a late layer may be inactive at first."""
_MIN_SAMPLES = 16


def dead_units(run: Run) -> list[Finding]:
    """Find activation functions that output 0 for every sample of every observed step.

    In a healthy network half of a ReLU's results are 0, and sometimes a unit is inactive for a batch. A layer is dead
    if all its results are 0 in the recorded steps and its gradients are exactly 0 in all observed steps; or if most of
    its units got no gradient from any sample in each of the observed steps.
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
        if _MIN_DEAD_SHARE <= share < 1.0 and _num_samples(gate) >= _MIN_SAMPLES:
            partly.append(_finding(gate, before, histories, share=share))
    return partly[:1]


def _gates(ops: Sequence[StepOp]) -> Iterator[tuple[set[str], StepOp]]:
    """Yield each activation function with the sites from the product before it on, in order."""
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
    """Return the share of units without a gradient in any observed step, as far as the shares per step show it."""
    found = []
    for parameter in before:
        history = histories[str(parameter.name)]
        known = history.zero_share[np.isfinite(history.zero_share)]
        if len(known) >= _MIN_STEPS and (len(parameter.shape) == 1 or (known == 1).all()):
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
    units = "all results" if share == 1.0 else f"the results of at least {share:.0%} of the units"
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
        title="dead units: every output is 0" if share == 1.0 else f"{share:.0%} of the units are dead",
        why=f"{units} of this {gate.bare} ({at.num_elements} values per step) are 0 for all samples{reach}; the "
        f"gradients of {before[0].site} confirm it in {plural(num_steps, 'observed step')}",
        fix=f"check the initial values of {biggest.name}"
        + (f" (mean {format_short(biggest.mean)})" if biggest.mean is not None else "")
        + ": biases near 0, random weights; or use leaky ReLU",
        evidence=({"share": share, "steps": num_steps, "parameters": [p.name for p in before]},),
    )


def _activation_function(run: Run) -> str | None:
    ops = run.events(step=0, rank=first_rank(run), phase="forward", columns=["op"])["op"].unique().to_pylist()
    return None if _GATES.intersection(map(bare_name, ops)) else "no ReLU or similar activation function was recorded"


RULES = (
    Rule(
        order=430,
        checks="units that always output 0",
        find=dead_units,
        needs=(needs.structure, needs.recorded_first_step, needs.measured_parameters, _activation_function),
        codes=(
            Code(
                name="dead-units",
                means="Units output 0 for every sample of every observed step: nothing passes through them, forward or "
                "backward.",
                fix="Check the initial values before them (biases near 0, random weights), or use an activation that "
                "is not flat, such as leaky ReLU.",
                leads_to=(Effect.STOPS_LEARNING,),
                follows_from=("zero-init", "exploding-activations", "constant-input", "input-scale"),
            ),
        ),
    ),
)
