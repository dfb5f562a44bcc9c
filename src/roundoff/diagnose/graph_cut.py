"""The rule for parameters that no gradient ever reaches: the graph ends between them and the loss."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.histories import first_histories
from roundoff.diagnose.layers import first_rank, forward_ops
from roundoff.diagnose.numbers import listed, plural
from roundoff.runs import Finding, ParameterFacts, Run, Severity
from roundoff.runs.step_ops import StepOp


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
    return [_finding(cut, before, is_detach=is_detach)] if before else []


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


def _finding(cut: StepOp, without: Sequence[ParameterFacts], *, is_detach: bool) -> Finding:
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
        why=f"{why}: {listed(names)}",
        fix=fix,
        evidence=({"without_gradient": list(names)},),
    )
