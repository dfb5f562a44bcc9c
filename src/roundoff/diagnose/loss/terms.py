"""Terms of a loss that train nothing, because no gradient passes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, rule
from roundoff.diagnose.step_flow import first_rank
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, LossTerm, LossTermsProbe, Run, StepDetail, ZeroGradDetail
from roundoff.runs.files.plain_json import object_of

_SAME = 1e-6


@rule(
    Code(
        name="loss-term-unreachable",
        means="A term is added to the loss and changes its value, but no gradient passes it: it was detached, computed "
        "under `no_grad`, turned into a number, or depends on parameters that no optimizer holds. It trains nothing.",
        fix="Compute the term with gradients, from the outputs of the model that it should train: no `detach`, `item`, "
        "`no_grad`, and `create_graph=True` for gradients in a loss.",
        follows_from=("graph-cut", "not-in-optimizer"),
    ),
    order=225,
    checks="terms of the loss that no gradient passes",
    needs=[needs.probe(LossTermsProbe, missing="no loss was replayed with its graph")],
)
def unreachable_terms(run: Run) -> Finding | None:
    """Find an addend of the loss that has no path to a parameter of an optimizer, in every step that was looked at.

    A constant may be added to a loss: one that comes from outside of the models counts only if it changes.
    """
    probes = run.probes(LossTermsProbe)
    steps = {probe.step for probe in probes}
    seen: dict[tuple[str | None, str], list[tuple[LossTermsProbe, LossTerm]]] = {}
    for probe in probes:
        for term in probe.terms if probe.num_terms and math.isfinite(probe.loss) else ():
            seen.setdefault((term.source, term.kind), []).append((probe, term))
    reached = {source for probe in probes for source in probe.reached}
    for (source, kind), found in seen.items():
        if kind == "not-stepped" and (source in reached or source is None or not _are_cleared(run, found[0][0].step)):
            continue
        if len({probe.step for probe, _ in found}) >= min(2, len(steps)) and _matters([term for _, term in found]):
            return _finding(*found[0], num_steps=len(steps))
    return None


def _are_cleared(run: Run, step: int) -> bool:
    """Say whether optimizers that do not step in a step have their gradients cleared before they do."""
    calls = run.calls(rank=first_rank(run))
    begin = next((place for place, call in enumerate(calls) if call.step == step and call.call == "backward"), None)
    if begin is None:
        return False
    stepping = {call.detail_as(StepDetail).optimizer for call in calls if call.step == step and call.call == "step"}
    others = {call.detail_as(StepDetail).optimizer for call in calls if call.call == "step"} - stepping
    for call in calls[begin:]:
        if call.call == "zero_grad":
            owner = call.detail_as(ZeroGradDetail).of
            others = others - {owner} if owner in others or owner in stepping else set()
        elif call.call == "step" and call.detail_as(StepDetail).optimizer in others:
            return False
    return True


def _matters(terms: Sequence[LossTerm]) -> bool:
    if terms[0].kind in ("computed", "elsewhere", "not-stepped"):
        return True
    values = [term.value for term in terms if term.value is not None]
    return max(values) - min(values) > _SAME * max(map(abs, values))


_WHAT = {
    "number": "is a Python number: it has left the graph, by .item() or float(), before it was added",
    "computed": "was computed from the models, but has no gradient: it was detached, or computed under no_grad, or as "
    "a gradient without create_graph=True",
    "outside": "has no gradient: it was computed under no_grad, or from data alone",
    "elsewhere": "has a gradient, but only for parameters that no optimizer holds: it is computed from another model",
    "not-stepped": "has a gradient, but only for parameters of an optimizer that does not step on it, and whose "
    "gradients are cleared before it does: the outputs that it is computed from were detached",
}


def _finding(probe: LossTermsProbe, term: LossTerm, *, num_steps: int) -> Finding:
    value = "" if term.value is None else f" of {format_short(term.value)}"
    return error(
        rule="loss-term-unreachable",
        confidence=0.8 if term.kind in ("number", "outside") else 0.9,
        step=probe.step,
        phase="forward",
        source=term.source,
        title="a term of the loss trains nothing",
        why=f"a term{value} is added to a loss of {format_short(probe.loss)} and {_WHAT[term.kind]}. The other terms "
        "reach parameters; this one changes the value of the loss and no weight",
        fix="compute the term with gradients, from the outputs of the model that it should train; if it is only to be "
        "reported, leave it out of the loss",
        evidence=(object_of(term), {"loss": probe.loss, "steps": num_steps}),
    )
