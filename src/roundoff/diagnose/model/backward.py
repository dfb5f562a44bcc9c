"""The rule for parameters that no gradient ever reaches: the graph ends between them and the loss."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.layers import first_rank, forward_ops
from roundoff.diagnose.parameter_histories import first_histories
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, JsonValue, ParameterFacts, Run, Severity
from roundoff.runs.records.step_ops import StepOp
from roundoff.words import join_names, plural

# == The rule for an autograd function whose backward is not the derivative of its forward.

_IS_OFF = 0.05
_LEAST, _MOST = 0.1, 10.0
"""Outside of these it is no mistake: rounding has no slope, and a gradient that is reversed is meant to be."""
_AGREES = 0.05
"""So near two walks of different lengths come to each other where there is a slope, and no jumps."""


def wrong_backwards(run: Run) -> list[Finding]:
    """Find gradients along which the loss does not change as they say, where an own autograd function is in the graph.

    Without such a function there is nothing that can be wrong: gradients are then edited, or stopped, on purpose.
    """
    for probe in run.probes():
        if probe.get("probe") != "direction":
            continue
        functions, by_site = probe.get("functions"), probe.get("by_site")
        entries = [entry for entry in by_site if isinstance(entry, dict)] if isinstance(by_site, list) else []
        off = [entry for entry in entries if _is_off(entry)]
        if isinstance(functions, list) and functions and off:
            return [_wrong_backward_finding(run, probe, [str(name) for name in functions], off)]
    return []


def _is_off(entry: dict[str, JsonValue]) -> bool:
    """Say whether the loss has a slope along a parameter's gradient, and another than the gradient says."""
    ratio, further = entry.get("ratio"), entry.get("ratio_further", entry.get("ratio"))
    if not isinstance(ratio, float) or not isinstance(further, float):
        return False
    has_slope = _LEAST < ratio < _MOST and abs(ratio - further) <= _AGREES * ratio
    return has_slope and abs(ratio - 1) > _IS_OFF


def _wrong_backward_finding(
    run: Run, probe: dict[str, JsonValue], functions: list[str], off: list[dict[str, JsonValue]]
) -> Finding:
    place = _place_after({str(entry.get("site")) for entry in off}, forward_ops(run))
    names = [str(entry.get("parameter")) for entry in off]
    ratios = sorted(value for entry in off if isinstance(value := entry.get("ratio"), float))
    step = probe.get("step")
    return Finding(
        rule="wrong-backward",
        severity=Severity.ERROR,
        confidence=0.95 if len(functions) == 1 else 0.85,
        step=step if isinstance(step, int) else None,
        phase="backward",
        site=None if place is None else place.first.site,
        parameter=names[-1],
        source=None if place is None else place.first.source,
        title=f"the backward of {join_names(functions)} is wrong",
        why=f"along the gradients of {join_names(names)} the loss changes, in fp64, "
        f"{format_short(ratios[len(ratios) // 2])} "
        "times as much as they say, where it should be 1; all of them lie before the function",
        fix=f"compare backward with forward in {join_names(functions)}: torch.autograd.gradcheck(function, fp64 "
        "inputs)",
        evidence=({"functions": list(functions), "ratio": probe.get("ratio"), "by_site": probe.get("by_site")},),
    )


def _place_after(sites: set[str], ops: list[StepOp]) -> StepOp | None:
    """Return the op after the last one of these sites: the function is the next to run."""
    places = [index for index, op in enumerate(ops) if op.first.site in sites]
    return ops[places[-1] + 1] if places and places[-1] + 1 < len(ops) else None


def cut_graphs(run: Run) -> list[Finding]:
    """Find where the graph is cut: everything before it runs and is in an optimizer, and never has a gradient.

    A part that runs without any loss that depends on it (a pooler nobody uses) is no cut: there nothing behind it
    learns, while parts before it do.
    """
    looks = run.structures(rank=first_rank(run))
    ops = forward_ops(run)
    if not looks or not ops:
        return []
    histories = first_histories(run)
    missing = {name for name, history in histories.items() if history.is_always_missing}
    without = [p for p in looks[0].parameters if p.name in missing and p.requires_grad and not p.is_reached]
    reached = {p.site for p in looks[0].parameters if p.is_reached}
    first = next((op for op in ops if op.first.site in reached), None)
    last = _last_of({p.site for p in without}, ops)
    if first is None or last is None:
        return []
    read = {event.hash for event in first.inputs}
    made = [op for op in ops if op.first.order < first.first.order and op.outputs[0].hash in read]
    cut = next((op for op in reversed(made) if op.bare == "detach"), None) or _detach_after(last, ops, reached)
    if cut is None and last.first.order > first.first.order:
        return []
    is_detach = cut is not None
    cut = cut or (made[-1] if made else last)
    started = {op.first.site for op in ops if op.first.order <= cut.first.order}
    before = [p for p in without if p.site in started]
    return [_cut_finding(cut, before, is_detach=is_detach)] if before else []


def _last_of(sites: set[str], ops: Sequence[StepOp]) -> StepOp | None:
    """Return the last op of these sites; None if they did not run."""
    return next((op for op in reversed(ops) if op.first.site in sites), None)


def _detach_after(last: StepOp, ops: Sequence[StepOp], reached: set[str]) -> StepOp | None:
    """Return the detach between the parts that get no gradient and the next one that does."""
    found = None
    for op in ops[ops.index(last) + 1 :]:
        if op.first.site in reached:
            return found
        if op.bare == "detach" and op.first.num_elements > 1:
            found = op
    return None


def _cut_finding(cut: StepOp, without: Sequence[ParameterFacts], *, is_detach: bool) -> Finding:
    names = [str(p.name) for p in without]
    at = cut.first
    if is_detach:
        why = f"its result leaves the graph here; {plural(len(names), 'parameter')} before it never have a gradient"
        fix = "remove the detach (or .data); if it is meant so, leave those parameters out of the optimizer"
    else:
        why = (
            f"this is the last op before the graph begins: {plural(len(names), 'parameter')} up to here never have a "
            "gradient, though an optimizer holds them"
        )
        fix = (
            "take this part out of torch.no_grad(), and let tensors stay tensors: .numpy(), .item() and torch.tensor() "
            "leave the graph; if it is meant so, leave those parameters out of the optimizer"
        )
    return Finding(
        rule="graph-cut",
        severity=Severity.ERROR,
        confidence=0.97 if is_detach else 0.9,
        step=0,
        phase="forward",
        site=at.site,
        op=at.op_name,
        parameter=names[0],
        source=at.source,
        title="the graph is cut: gradients do not come past this op",
        why=f"{why}: {join_names(names)}",
        fix=fix,
        evidence=({"without_gradient": list(names)},),
    )
