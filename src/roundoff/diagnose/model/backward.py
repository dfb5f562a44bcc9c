"""Gradients that do not arrive, because the graph is cut, or are wrong, because of a custom autograd function."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import parameter_histories
from roundoff.diagnose.rule import Code, FaultEffect, error, rule
from roundoff.diagnose.step_flow import first_rank, forward_ops
from roundoff.diagnose.wording import format_short
from roundoff.runs import (
    DirectionProbe,
    Finding,
    ForwardDetail,
    Metrics,
    ParameterFacts,
    Run,
    SlopeOfParameter,
    StepDetail,
    Structure,
    ZeroGradDetail,
    object_of,
)
from roundoff.runs.records.event import StepOp
from roundoff.words import join_names, plural

_IS_OFF = 0.05
_MIN_RATIO, _MAX_RATIO = 0.1, 10.0
"""Outside of these it is deliberate: rounding has no slope, and a gradient may be reversed on purpose."""
_AGREES = 0.05
"""How closely steps of two lengths must agree: then the loss is smooth there, without jumps."""
_FLAT = frozenset({"sign", "sgn", "round", "floor", "ceil", "trunc", "heaviside"})
_MIN_EMPTY, _MIN_COURSE = 3, 0.15
"""So many steps without a gradient, the last of them after this share of the training: some parts join late."""


@rule(
    Code(
        name="wrong-backward",
        means="A custom autograd function has a backward that is not the derivative of its forward. Such a training "
        "often still learns something.",
        fix="Check it with `torch.autograd.gradcheck` on fp64 inputs.",
    ),
    order=470,
    checks="custom autograd functions",
    needs=[
        needs.probe(DirectionProbe),
        needs.some(
            lambda run: any(found.functions for found in run.probes(DirectionProbe)),
            "no custom autograd function was seen",
        ),
    ],
)
def wrong_backwards(run: Run) -> Finding | None:
    """Find gradients that do not predict how the loss changes along them, in a graph with a custom autograd function.

    Without such a function nothing can be wrong: then gradients are edited, or stopped, on purpose.
    """
    for probe in run.probes(DirectionProbe):
        off = [slope for slope in probe.by_site if _is_off(slope)]
        if probe.functions and off:
            return _wrong_backward_finding(run, probe, off)
    return None


def _is_off(slope: SlopeOfParameter) -> bool:
    """Say whether the loss has a slope along a parameter's gradient that the gradient does not predict."""
    ratio = slope.ratio
    if ratio is None:
        return False
    further = ratio if slope.ratio_further is None else slope.ratio_further
    has_slope = _MIN_RATIO < ratio < _MAX_RATIO and abs(ratio - further) <= _AGREES * ratio
    return has_slope and abs(ratio - 1) > _IS_OFF


def _wrong_backward_finding(run: Run, probe: DirectionProbe, off: Sequence[SlopeOfParameter]) -> Finding:
    place = _place_after({slope.site for slope in off}, forward_ops(run))
    names = [str(slope.parameter) for slope in off]
    ratios = sorted(slope.ratio for slope in off if slope.ratio is not None)
    functions = probe.functions
    return error(
        rule="wrong-backward",
        confidence=0.95 if len(functions) == 1 else 0.85,
        step=probe.step,
        phase="backward",
        site=None if place is None else place.first.site,
        parameter=names[-1],
        source=None if place is None else place.first.source,
        title=f"the backward of {join_names(functions)} is wrong",
        why=f"along the gradients of {join_names(names)} the loss changes {format_short(ratios[len(ratios) // 2])} "
        "times as much as they predict (measured in fp64; it should be 1 times); all of them come before the function",
        fix=f"compare backward with forward in {join_names(functions)}: torch.autograd.gradcheck(function, fp64 "
        "inputs)",
        evidence=(
            {
                "functions": list(functions),
                "ratio": probe.ratio,
                "by_site": [object_of(each) for each in probe.by_site],
            },
        ),
    )


def _place_after(sites: set[str], ops: list[StepOp]) -> StepOp | None:
    """Return the op after the last one of these sites: the function is the next to run."""
    places = [index for index, op in enumerate(ops) if op.first.site in sites]
    return ops[places[-1] + 1] if places and places[-1] + 1 < len(ops) else None


@rule(
    Code(
        name="graph-cut",
        means="The autograd graph ends between the loss and some parameters: a `detach`, a `.data`, a `no_grad`, a "
        "conversion to numpy, a new `torch.tensor` of what was computed, or an op that is flat everywhere, such as "
        "`sign`. These parameters never get a gradient.",
        fix="Remove the cut, or move it before the part that should learn.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
        follows_from=("stale-optimizer-parameters",),
    ),
    order=220,
    checks="gradients that stop before they reach a parameter",
    needs=[needs.structure, needs.recorded_first_step, needs.measured_parameters],
)
def cut_graphs(run: Run) -> Finding | None:
    """Find where the graph is cut: everything before it runs and is in an optimizer, and never has a gradient.

    A part whose output no loss depends on (an unused pooler) is not a cut: there, nothing after it learns, while parts
    before it do. An optimizer that steps and never has a gradient is one, wherever the graph was cut.
    """
    looks = run.structures(rank=first_rank(run))
    found = _find_first_cut(run, looks) or _find_flat_op(run, looks) or _find_empty_steps(run, looks)
    found = found or _find_unused_model(run, looks)
    return found or next((cut for look in looks[1:] if (cut := _find_later_cut(looks[0], look)) is not None), None)


def _find_first_cut(run: Run, looks: Sequence[Structure]) -> Finding | None:
    """Look at the ops of step 0."""
    ops = forward_ops(run)
    if not looks or not ops:
        return None
    missing = _always_missing(run)
    without = [p for p in looks[0].parameters if p.name in missing and p.requires_grad and not p.is_reached]
    reached = {p.site for p in looks[0].parameters if p.is_reached}
    first = next((op for op in ops if op.first.site in reached), None)
    last = _last_of({p.site for p in without}, ops)
    if first is None or last is None:
        return None
    read = {event.hash for event in first.inputs}
    made = [op for op in ops if op.first.order < first.first.order and op.outputs[0].hash in read]
    cut = next((op for op in reversed(made) if op.bare == "detach"), None) or _detach_after(last, ops, reached)
    if cut is None and last.first.order > first.first.order:
        return None
    is_detach = cut is not None
    cut = cut or (made[-1] if made else last)
    started = {op.first.site for op in ops if op.first.order <= cut.first.order}
    before = [p for p in without if p.site in started]
    return _cut_finding(cut, before, is_detach=is_detach) if before else None


def _always_missing(run: Run) -> set[str]:
    """Return the parameters without a gradient in any measured step; one that joins late may not have been measured."""
    last = max((metric.step for metric in run.metrics(rank=first_rank(run))), default=0)
    histories = parameter_histories(run, first_rank(run))
    return {
        name
        for name, history in histories.items()
        if history.is_always_missing and max(history.steps) >= _MIN_COURSE * last
    }


def _find_flat_op(run: Run, looks: Sequence[Structure]) -> Finding | None:
    """Find an op whose derivative is 0: all parameters before it have a gradient of exactly 0, in every step."""
    ops, histories = forward_ops(run), parameter_histories(run, first_rank(run))
    if not looks:
        return None
    stuck = [p for p in looks[0].parameters if p.name in histories and histories[p.name].is_always_zero]
    moved = {p.site for p in looks[0].parameters if p.name in histories and not histories[p.name].is_always_zero}
    last = _last_of({p.site for p in stuck}, ops)
    flat = None if last is None else next((op for op in ops[ops.index(last) :] if op.bare in _FLAT), None)
    if flat is None or any(op.first.site in moved for op in ops[: ops.index(flat)]):
        return None
    names = [str(p.name) for p in stuck]
    return error(
        rule="graph-cut",
        confidence=0.95,
        step=0,
        phase="backward",
        site=flat.first.site,
        op=flat.first.op_name,
        parameter=names[0],
        source=flat.first.source,
        title=f"no gradient passes {flat.bare}, whose derivative is 0",
        why=f"the gradients of {join_names(names)}, which come before it, are exactly 0 in all "
        f"{plural(len(histories[names[0]].steps), 'measured step')}",
        fix=f"use a smooth function such as tanh, or let the gradient through as if it were not there: "
        f"x + (torch.{flat.bare}(x) - x).detach()",
        evidence=({"without_gradient": list(names)},),
    )


def _find_later_cut(first: Structure, look: Structure) -> Finding | None:
    """Look at a model that joined later, of which no ops are recorded: part of it has no gradient after a step."""
    known = {p.name for p in first.parameters}
    new = [p for p in look.parameters if p.name is not None and p.name not in known and p.requires_grad]
    new = [p for p in new if p.optimizers]
    without = [p for p in new if not p.is_reached and not p.has_gradient]
    if not without or not any(p.is_reached for p in new) or not _comes_first(without, new):
        return None
    names = [str(p.name) for p in without]
    return error(
        rule="graph-cut",
        confidence=0.8,
        step=look.step,
        phase="forward",
        site=without[-1].site,
        parameter=names[0],
        title=f"the graph is cut after {without[-1].site}",
        why=f"in step {look.step} the loss reached {sum(p.is_reached for p in new)} of the {len(new)} parameters of a "
        f"model that was trained for the first time; {join_names(names)}, which come before those, had no gradient",
        fix="look for a detach, .data, no_grad, .item() or a conversion to numpy after this layer; if it is intended, "
        "leave those parameters out of the optimizer",
        evidence=({"without_gradient": list(names)},),
    )


def _find_empty_steps(run: Run, looks: Sequence[Structure]) -> Finding | None:
    """Find an optimizer none of whose parameters had a gradient in any step that was measured, after a backward."""
    metrics = run.metrics(rank=first_rank(run))
    for name in dict.fromkeys(metric.optimizer for metric in metrics if metric.optimizer is not None):
        own = [metric for metric in metrics if metric.optimizer == name]
        measured = [metric for metric in own if metric.grad_norm is not None]
        held = [p for look in looks for p in look.parameters if name in p.optimizers and p.requires_grad]
        if (
            len(measured) >= _MIN_EMPTY
            and max(measured[-1].step, _last_fresh(run, name)) >= _MIN_COURSE * own[-1].step
            and all(math.isnan(m.grad_norm or 0.0) and not m.update_norm for m in measured)
            and held
            and all(p.name is not None and not p.is_reached and not p.has_gradient for p in held)
            and _steps_after_backward(run, name, looks)
        ):
            return _empty_finding(name, measured, list({str(p.name): p for p in held}.values()))
    return None


def _find_unused_model(run: Run, looks: Sequence[Structure]) -> Finding | None:
    """Find a model that runs with its graph in every step, whose optimizer steps, and that never has a gradient."""
    missing = _always_missing(run)
    models: dict[str, list[ParameterFacts]] = {}
    for parameter in looks[0].parameters if looks else ():
        if parameter.name is not None and parameter.requires_grad:
            models.setdefault(parameter.site.partition(":")[0] if ":" in parameter.site else "", []).append(parameter)
    reached = {p.name for look in looks for p in look.parameters if p.is_reached or p.has_gradient}
    calls = [call for call in run.calls(rank=first_rank(run)) if call.call == "forward"]
    for model, held in models.items():
        if len(models) < 2 or not all(p.optimizers and p.name in missing and p.name not in reached for p in held):
            continue
        called = [call.step for call in calls if _is_of_model(call.detail_as(ForwardDetail).site, model)]
        if len(set(called)) >= max(_MIN_EMPTY, _MIN_COURSE * len({call.step for call in calls})):
            return _unused_finding(held, num_steps=len(set(called)))
    return None


def _is_of_model(site: str, model: str) -> bool:
    return site.startswith(f"{model}:") if model else ":" not in site


def _unused_finding(held: Sequence[ParameterFacts], *, num_steps: int) -> Finding:
    names = [str(p.name) for p in held]
    optimizer = held[0].optimizers[0]
    return error(
        rule="graph-cut",
        confidence=0.9,
        step=0,
        phase="forward",
        site=held[-1].site,
        parameter=names[0],
        title=f"the graph is cut after {held[-1].site}",
        why=f"the model runs with gradients enabled in {plural(num_steps, 'step')} and {optimizer} holds its "
        f"{plural(len(names), 'parameter')} ({join_names(names)}), but no loss ever reaches one of them: what it "
        "computes leaves the graph before it is used",
        fix="look for a detach, .data, .item(), .numpy() or torch.tensor() on its output; if it is intended, leave "
        "those parameters out of the optimizer",
        evidence=({"without_gradient": list(names), "steps": num_steps},),
    )


def _last_fresh(run: Run, optimizer: str) -> int:
    """Return the last step that was written down in which an optimizer still had no state, as before its first use."""
    steps = [call for call in run.calls(rank=first_rank(run)) if call.call == "step"]
    own = [call for call in steps if call.detail_as(StepDetail).optimizer == optimizer]
    return own[-1].step if own and own[-1].detail_as(StepDetail).is_fresh else -1


def _steps_after_backward(run: Run, optimizer: str, looks: Sequence[Structure]) -> bool:
    """Say whether each step of an optimizer comes after a backward whose gradients were not cleared before it."""
    others = {one.name for look in looks for one in look.optimizers} - {optimizer}
    has_run = False
    for call in run.calls(rank=first_rank(run)):
        if call.call == "backward":
            has_run = True
        elif call.call == "zero_grad" and call.detail_as(ZeroGradDetail).of not in others:
            has_run = False
        elif call.call == "step" and call.detail_as(StepDetail).optimizer == optimizer and not has_run:
            return False
    return True


def _empty_finding(optimizer: str, measured: Sequence[Metrics], held: Sequence[ParameterFacts]) -> Finding:
    names = [str(p.name) for p in held]
    return error(
        rule="graph-cut",
        confidence=0.95,
        step=measured[0].step,
        phase="backward",
        site=held[0].site,
        parameter=names[0],
        title=f"{optimizer} steps without any gradient",
        why=f"in none of its {len(measured)} measured steps did one of its {plural(len(names), 'parameter')} "
        f"({join_names(names)}) have a gradient, although backward ran just before: what they computed has left the "
        "graph on its way to that loss, so the weights have not changed",
        fix="compute the loss for this optimizer from outputs that still have their graph: without detach, .data, "
        ".item(), .numpy(), torch.tensor() or no_grad in between; a detached copy is for the loss of another model",
        evidence=({"optimizer": optimizer, "without_gradient": list(names), "steps": len(measured)},),
    )


def _comes_first(without: Sequence[ParameterFacts], new: Sequence[ParameterFacts]) -> bool:
    """Say whether all of them were made before those that have a gradient: others are a branch that was not used."""
    return [p.name for p in new[: len(without)]] == [p.name for p in without]


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
        why = f"its result leaves the graph here, so {plural(len(names), 'parameter')} before it never get gradients"
        fix = "remove the detach (or .data); if it is intended, leave those parameters out of the optimizer"
    else:
        why = (
            f"this is the last op before the graph begins: {plural(len(names), 'parameter')} up to here never "
            f"{'has' if len(names) == 1 else 'have'} a gradient, although an optimizer holds "
            f"{'it' if len(names) == 1 else 'them'}"
        )
        fix = (
            "take this part out of torch.no_grad(), and keep tensors as tensors: .numpy(), .item() and torch.tensor() "
            "leave the graph; if it is intended, leave those parameters out of the optimizer"
        )
    return error(
        rule="graph-cut",
        confidence=0.97 if is_detach else 0.9,
        step=0,
        phase="forward",
        site=at.site,
        op=at.op_name,
        parameter=names[0],
        source=at.source,
        title="the graph is cut: gradients do not pass this op",
        why=f"{why}: {join_names(names)}",
        fix=fix,
        evidence=({"without_gradient": list(names)},),
    )
