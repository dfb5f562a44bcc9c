"""A softmax over an axis with a single element: its result is always 1, whatever comes in."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import ParameterHistory, first_histories
from roundoff.diagnose.rule import Code, FaultEffect, place_of, rule
from roundoff.diagnose.step_flow import Flow, forward_ops
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.records.event import StepOp
from roundoff.words import join_names

_SOFTMAXES = {"_softmax": 1.0, "_log_softmax": 0.0}
"""What each gives for a single element."""


@rule(
    Code(
        name="constant-softmax",
        means="A softmax runs over an axis that has a single element. Its result is always 1 (0 for a log_softmax), "
        "whatever comes in, and its gradient is exactly 0: what computed its input cannot learn.",
        fix="With one output, use a sigmoid and `binary_cross_entropy_with_logits`; else give the softmax the axis of "
        "the classes or places.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=407,
    checks="softmaxes over an axis with a single element",
    needs=[
        needs.recorded_steps,
        needs.measured_parameters,
        needs.some(lambda run: _softmaxes(_first_ops(run)), "no softmax was recorded"),
    ],
)
def constant_softmaxes(run: Run) -> Finding | None:
    """Find a softmax whose results are all 1, and behind it a layer whose gradient is exactly 0 in every step.

    An attention over a single place has such a softmax too; there, gradients flow through its values.
    """
    ops = _first_ops(run)
    found = [op for op in _softmaxes(ops) if _is_constant(op)]
    histories = [history for history in first_histories(run).values() if not history.is_always_missing]
    stuck = [history for history in histories if history.is_always_zero]
    if not found or not stuck:
        return None
    if len(stuck) == len(histories):
        return _finding(found[0], stuck, severity=Severity.ERROR)
    flow = Flow(ops)
    for op in found:
        maker = flow.maker_of(op.inputs[0])
        behind = [history for history in stuck if maker is not None and history.site == maker.first.site]
        if behind:
            return _finding(op, behind, severity=Severity.WARNING)
    return None


def _first_ops(run: Run) -> list[StepOp]:
    """Return the ops of the first step that was recorded."""
    return forward_ops(run, step=min(run.steps)) if run.steps else []


def _softmaxes(ops: list[StepOp]) -> list[StepOp]:
    return [op for op in ops if op.bare in _SOFTMAXES and op.inputs and op.outputs]


def _is_constant(op: StepOp) -> bool:
    given, result, value = op.inputs[0], op.outputs[0], _SOFTMAXES[op.bare]
    return result.num_elements > 1 and result.min == result.max == value and given.min < given.max


def _finding(op: StepOp, stuck: list[ParameterHistory], *, severity: Severity) -> Finding:
    given, names = op.inputs[0], [history.name for history in stuck]
    which = "all trained parameters" if severity is Severity.ERROR else join_names(names)
    return Finding(
        rule="constant-softmax",
        severity=severity,
        confidence=0.97 if severity is Severity.ERROR else 0.85,
        **place_of(op.outputs[0]),
        parameter=names[-1],
        title="the softmax runs over a single element, and always gives the same",
        why=f"its inputs range from {format_short(given.min)} to {format_short(given.max)}, and all its "
        f"{op.outputs[0].num_elements} results are {_SOFTMAXES[op.bare]:.0f}: its axis has a single element. "
        f"No gradient passes it, and that of {which} is exactly 0 in each of the first {len(stuck[0].steps)} steps",
        fix="with one output per sample, replace the softmax by a sigmoid (or leave it out and use "
        "binary_cross_entropy_with_logits); else pass the axis of the classes or places as dim",
        evidence=({"without_gradient": list(names), "results": op.outputs[0].num_elements},),
    )
