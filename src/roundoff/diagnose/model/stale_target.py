"""A copy of the trained model that computes targets, and is never updated."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, rule, warning
from roundoff.diagnose.step_flow import first_rank
from roundoff.runs import Finding, LoadDetail, Run, Severity, TargetTwinProbe

_MIN_PAIRS = 2


@rule(
    Code(
        name="target-always-current",
        means="The target network is copied from the model after every update, so it is the model itself: what the "
        "model is trained towards moves with each step.",
        fix="Copy it every few hundred steps, or move it a little in each step: `p_target.lerp_(p, 0.005)`.",
        detected="A copy of the model that computes targets has the model's weights at calls in a row, between which "
        "the model has moved.",
    ),
    Code(
        name="target-never-updated",
        means="A copy of the model, such as the target network of Q-learning or the teacher of self-distillation, "
        "computes what the model is trained towards, and never changes: it was not updated, or into other tensors than "
        "its own.",
        fix="Copy the weights every so many steps, `target.load_state_dict(model.state_dict())`, or move them a little "
        "in every step, in place: `p_target.lerp_(p, 0.005)`. A target network may well be copied only every thousand "
        "steps.",
        detected="A copy still has its start values although the model has moved.",
    ),
    order=208,
    checks="copies of the model that compute targets",
    needs=[needs.probe(TargetTwinProbe, missing="no copy of a trained model was asked without gradients")],
)
def stale_targets(run: Run) -> Finding | None:
    """Find a copy that still has the start values of a model which has moved, and is asked about other inputs.

    A copy that is given the inputs of the model itself may be a reference that is meant to stay.
    """
    last = {probe.site: probe for probe in run.probes(TargetTwinProbe)}
    current = next((probe for probe in last.values() if probe.num_pairs >= _MIN_PAIRS <= probe.num_current), None)
    if current is not None and current.num_current == _num_judged(current):
        return _current_finding(run, current)
    given = {tensor.hash for batch in run.inputs(rank=first_rank(run)) for tensor in batch.tensors}
    for probe in last.values():
        if probe.has_moved or not probe.model_has_moved or not probe.inputs or given.intersection(probe.inputs):
            continue
        return _finding(run, probe)
    return None


def _num_judged(probe: TargetTwinProbe) -> int:
    """Return how many pairs of calls are complete: of the last one the second call may be missing."""
    return probe.num_pairs - (probe.num_calls % 2 == 0)


def _current_finding(run: Run, probe: TargetTwinProbe) -> Finding:
    return warning(
        rule="target-always-current",
        confidence=0.85,
        step=probe.step,
        rank=first_rank(run),
        site=probe.site,
        title=f"the target network ({probe.site}) is copied from the model after every update",
        why=f"{probe.site} began as a copy of the trained model and was asked {probe.num_calls} times without "
        f"gradients; wherever two calls in a row were looked at ({probe.num_current} times), it had the weights "
        "of the model both times, and the model had moved in between: the targets move with every step of the model",
        fix="copy the weights every few hundred steps only (if step % 500 == 0), or move them a little in each: "
        "p_target.data.lerp_(p.data, 0.005)",
        evidence=({"num_calls": probe.num_calls, "num_current": probe.num_current},),
    )


def _finding(run: Run, probe: TargetTwinProbe) -> Finding:
    named = "" if probe.parameter is None else f" (its first parameter: {probe.parameter})"
    calls = run.calls(rank=first_rank(run))
    num_own = sum(call.call == "load" and call.detail_as(LoadDetail).is_own for call in calls)
    from_itself = f"; {num_own} times load_state_dict was given the very tensors it loads into" if num_own > 1 else ""
    return Finding(
        rule="target-never-updated",
        severity=Severity.WARNING if num_own > 1 else Severity.NOTE,
        confidence=0.9 if num_own > 1 else 0.6,
        step=probe.step,
        rank=first_rank(run),
        site=probe.site,
        title=f"a copy of the model ({probe.site}) never changes",
        why=f"{probe.site} began as an exact copy of the trained model{named} and was asked {probe.num_calls} times "
        "without gradients; its first inputs were not among the batches of the model, as with targets; up to step "
        f"{probe.step} none of its weights has changed, while those of the model have{from_itself}",
        fix="copy the weights now and then, target.load_state_dict(model.state_dict()), or in part after every step: "
        "p_target.data.lerp_(p.data, 0.005); nothing, if the next copy is due later",
        evidence=({"num_calls": probe.num_calls, "step": probe.step},),
    )
