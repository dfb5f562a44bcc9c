"""Units that cannot learn: initial values of 0, or the same for all units of a layer, and outputs that are always 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import ParameterHistory, first_histories, parameter_histories
from roundoff.diagnose.rule import Code, FaultEffect, error, rule
from roundoff.diagnose.step_flow import PRODUCTS, first_rank, forward_ops, op_names
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, ParameterFacts, Run, Structure
from roundoff.runs.records.event import StepOp
from roundoff.words import join_names, plural

_MIN_COPIES = 4
_MIN_ROW = 4
"""In shorter rows a single update may agree by chance."""


@rule(
    Code(
        name="zero-init",
        means="Weights start at 0 and stay there, because no gradient can move them.",
        detected="Weights that are all 0 at the start and still 0 after the first updates.",
        fix="Initialize weights randomly; only biases, or a last layer alone, may start at 0.",
    ),
    Code(
        name="symmetric-init",
        means="The rows of a weight start equal, get equal gradients and stay equal, so many units compute the same "
        "thing.",
        detected="Weights whose rows are bitwise equal at the start and after the first updates.",
        fix="Initialize weights randomly: `nn.init.kaiming_uniform_` instead of a constant.",
    ),
    order=420,
    checks="initial values that cannot learn",
    needs=[needs.structure, needs.measured_parameters],
)
def stuck_start_values(run: Run) -> Finding | None:
    """Find weights that start at 0 and stay there, or whose rows start equal and stay equal.

    Initial zeros are often intended (a head, the last layer of a residual branch) and learn from the second step on:
    only those that never do are reported.
    """
    looks = run.structures(rank=first_rank(run))
    if not looks:
        return None
    histories = first_histories(run)
    weights = [p for p in looks[0].parameters if p.name is not None and len(p.shape) >= 2 and p.requires_grad]
    weights = [p for p in weights if p.name in histories]
    stuck = [p for p in weights if p.is_zero and histories[str(p.name)].is_always_zero]
    if stuck:
        return _zero_finding(looks[0], stuck, histories)
    equal = [p for p in weights if _stays_equal(p, looks, histories[str(p.name)])]
    zero = [p for p in equal if p.is_zero]
    if zero:
        return _zero_finding(looks[0], zero, histories)
    return _symmetric_finding(looks[0], equal) if equal else _late_zeros(run, looks)


def _late_zeros(run: Run, looks: Sequence[Structure]) -> Finding | None:
    """Find weights that joined a running training, such as adapters, and are exactly 0 in every measured step."""
    known = {p.name for p in looks[0].parameters}
    for look in looks[1:]:
        new = [p for p in look.parameters if p.name not in known and len(p.shape) >= 2 and p.optimizers]
        histories = parameter_histories(run, first_rank(run), names={str(p.name) for p in new}) if new else {}
        stuck = [p for p in new if p.name in histories and _is_stuck_at_zero(histories[str(p.name)])]
        if len(new) > 1 and all(p.is_zero for p in new):
            stuck = new  # two zeros in a row: neither can get a gradient
        if stuck:
            return _zero_finding(look, stuck, histories)
        known |= {p.name for p in new}
    return None


def _is_stuck_at_zero(history: ParameterHistory) -> bool:
    return history.is_always_zero and bool((history.norm == 0).all())


def _stays_equal(weight: ParameterFacts, looks: Sequence[Structure], history: ParameterHistory) -> bool:
    """Say whether all rows are still equal after updates that could have made them different."""
    if not (np.nan_to_num(history.update) > 0).any():
        return False
    seen = [p for look in looks for p in look.parameters if p.name == weight.name and p.shape == weight.shape]
    row = int(np.prod(weight.shape[1:]))
    has_moved_before = bool((history.update[history.steps == looks[0].step] > 0).any())
    if len(seen) < 2 and (row < _MIN_ROW or not has_moved_before):
        return False
    return all(_share_rows(p) for p in seen)


def _share_rows(weight: ParameterFacts) -> bool:
    """Say whether rows repeat: all are equal, or those of each gate of a recurrent layer."""
    if weight.equal_rows:
        return True
    return weight.num_distinct_rows is not None and weight.num_distinct_rows * _MIN_COPIES <= weight.shape[0]


def _zero_finding(
    look: Structure, zero: Sequence[ParameterFacts], histories: Mapping[str, ParameterHistory]
) -> Finding:
    names = [str(p.name) for p in zero]
    learning = [name for name, history in histories.items() if not history.is_always_zero]
    without = len(histories) - len(learning)
    effect = (
        f"; {without} of {plural(len(histories), 'parameter')} never get a nonzero gradient, only "
        f"{join_names(learning)} {'does' if len(learning) == 1 else 'do'}"
        if without
        else "; all units of a layer then get the same gradient and stay equal"
        if histories
        else ", and still after the first update: where one is multiplied by another, neither gets a gradient"
    )
    return error(
        rule="zero-init",
        confidence=0.95,
        step=look.step,
        site=zero[0].site,
        parameter=names[0],
        title=f"{names[0]} starts at 0 and cannot learn",
        why=f"every element of {join_names(names)} is 0 at the start{effect}",
        fix="initialize weights randomly (the layer's reset_parameters(), nn.init.kaiming_uniform_); only biases, or "
        "the last layer alone, may start at 0",
        evidence=({"zero": list(names)}, {"learning": list(learning), "num_parameters": len(histories)}),
    )


def _symmetric_finding(look: Structure, equal: Sequence[ParameterFacts]) -> Finding:
    names = [str(p.name) for p in equal]
    first = equal[0]
    value = f" ({format_short(first.mean)} everywhere)" if first.mean is not None and not first.std else ""
    return error(
        rule="symmetric-init",
        confidence=0.95,
        step=look.step,
        site=first.site,
        parameter=names[0],
        title=f"the {first.shape[0]} rows of {names[0]} are {'identical' if first.equal_rows else 'copies of a few'}",
        why=f"{join_names(names)}{value}: units that start equal get equal gradients; their rows are still equal "
        "after the updates, so each layer computes one unit many times",
        fix="initialize weights randomly: nn.init.kaiming_uniform_ or xavier_uniform_ instead of a constant",
        evidence=({"equal_rows": list(names)},),
    )


_GATES = frozenset({"relu", "threshold", "clamp_min", "clamp", "hardtanh", "gelu", "hardswish", "relu6"})
HARD_GATES = _GATES - {"gelu", "hardswish"}
"""Activation functions that give exactly 0 for a range of inputs."""
_MIN_STEPS = 5
_MIN_DEAD_SHARE = 0.9
"""In deep networks with torch's default initial values, half of the units of a late layer may be inactive at first."""
_MIN_SAMPLES = 16


@rule(
    Code(
        name="dead-units",
        means="Units output 0 for every sample of every observed step: nothing passes through them, forward or "
        "backward.",
        fix="Check the initial values before them (biases near 0, random weights), or use an activation that is not "
        "flat, such as leaky ReLU.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
        follows_from=("zero-init", "exploding-activations", "constant-input", "input-scale"),
    ),
    order=430,
    checks="units that always output 0",
    needs=[
        needs.structure,
        needs.recorded_first_step,
        needs.measured_parameters,
        needs.some(
            lambda run: _GATES & op_names(run, step=0, rank=first_rank(run), phase="forward"),
            "no ReLU or similar activation function was recorded",
        ),
    ],
)
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


def gated_sites(ops: Sequence[StepOp]) -> set[str]:
    """Return the sites of layers before an activation function that gives exactly 0 for some inputs."""
    return {site for sites, gate in _gates(ops) if gate.bare in HARD_GATES for site in sites}


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
    return error(
        rule="dead-units",
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
