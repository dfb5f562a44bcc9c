"""Optimizers that step twice on one backward, or never."""

from __future__ import annotations

from collections import Counter

from roundoff.diagnose import needs
from roundoff.diagnose.loop_calls import first_rank_with, loop_steps
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.runs import Call, Finding, Run, Severity, StepDetail, Structure
from roundoff.words import plural

_MIN_BACKWARDS = 10
"""Fewer may be the microbatches of a step that was not reached."""


def missing_steps(run: Run) -> list[Finding]:
    """Find optimizers that never step, although backward computes gradients for their parameters."""
    return first_rank_with(run, _missing_steps_of_rank)


def _missing_steps_of_rank(run: Run, rank: int) -> list[Finding]:
    calls = run.calls(rank=rank)
    made = Counter[str](call.call for call in calls)
    structures = run.structures(rank=rank)
    if made["backward"] < _MIN_BACKWARDS or not structures:
        return []
    stepped = {call.detail_as(StepDetail).optimizer for call in calls if call.call == "step"}
    idle = [name for name in _with_gradients(structures[-1]) if name not in stepped]
    if not idle or (not stepped and _weights_changed(run, rank)):
        return []
    several = "" if not stepped else f"; {', '.join(sorted(map(str, stepped)))} did"
    return [
        Finding(
            rule="missing-step",
            severity=Severity.WARNING if stepped else Severity.ERROR,
            confidence=0.8 if stepped else 0.97,
            step=0,
            rank=rank,
            phase="optimizer",
            title=f"{idle[0]} never steps",
            why=f"backward ran at least {plural(made['backward'], 'time')} and computed gradients for the parameters "
            f"of {', '.join(idle)}, but its step was never called{several}: these weights never change",
            fix="call optimizer.step() after backward"
            + ("" if made["zero_grad"] else "; if gradients are accumulated, check that the step is ever reached"),
            evidence=({"calls": {**made}},),
        )
    ]


def _with_gradients(structure: Structure) -> list[str]:
    """Return the optimizers that hold parameters which backward reaches and no other optimizer holds."""
    reached = [parameter.optimizers for parameter in structure.parameters if parameter.is_reached]
    return [entry.name for entry in structure.optimizers if (entry.name,) in reached]


def _weights_changed(run: Run, rank: int) -> bool:
    """Say whether other code changed the weights between steps 0 and 1."""
    first, second = (
        {(event.parameter, event.output): event.hash for event in run.iter_events(step=step, rank=rank, op="parameter")}
        for step in (0, 1)
    )
    return any(second.get(key, known) != known for key, known in first.items())


def double_steps(run: Run) -> list[Finding]:
    """Find an optimizer that stepped again without a backward or zero_grad in between."""
    return first_rank_with(run, _double_steps_of_rank)


def _double_steps_of_rank(run: Run, rank: int) -> list[Finding]:
    pairs = _second_steps(run, rank)
    if not pairs:
        return []
    first, second = pairs[0]
    ways = ["by the scaler" if call.detail_as(StepDetail).by_scaler else "directly" for call in (first, second)]
    callers = f" ({ways[0]} and {ways[1]})" if ways[0] != ways[1] else ""
    return [
        Finding(
            rule="double-step",
            severity=Severity.ERROR,
            confidence=0.97,
            step=second.step,
            rank=rank,
            phase="optimizer",
            title="the optimizer steps twice on the same gradients",
            why=f"{second.detail_as(StepDetail).optimizer} stepped twice after one backward{callers}, without new "
            f"gradients in between; this happened {plural(len(pairs), 'time')}, first in step {second.step}",
            fix="remove one of the two calls; with a GradScaler, call only scaler.step(optimizer)",
            evidence=({"steps": [second.step for _, second in pairs[:20]]},),
        )
    ]


def _second_steps(run: Run, rank: int) -> list[tuple[Call, Call]]:
    """Return each pair of steps of one optimizer on one backward.

    Gradients may come from elsewhere than backward: only an optimizer that had a backward before its first step counts.
    """
    pairs: list[tuple[Call, Call]] = []
    last: dict[object, Call] = {}  # the last step of each optimizer that had a backward and nothing since
    has_backward = False
    step_before = -1
    for loop_step in loop_steps(run, rank):
        if loop_step.step > step_before + 1:
            last.clear()  # what happened in between was not recorded
        step_before = loop_step.step
        for call in loop_step.calls:
            if call.call in ("backward", "zero_grad", "load"):
                last.clear()
                has_backward = call.call == "backward" or (has_backward and call.call == "load")
            elif call.call == "step":
                name = call.detail_as(StepDetail).optimizer
                if name in last:
                    pairs.append((last[name], call))
                elif has_backward:
                    last[name] = call
    return pairs


def _enough_backwards(run: Run) -> str | None:
    most = max((sum(call.call == "backward" for call in run.calls(rank=rank)) for rank in run.ranks), default=0)
    return None if most >= _MIN_BACKWARDS else f"fewer than {_MIN_BACKWARDS} backwards were recorded"


RULES = (
    Rule(
        order=650,
        checks="two optimizer steps on one backward",
        find=double_steps,
        needs=(needs.calls("step", missing="no optimizer step was seen"),),
        codes=(
            Code(
                name="double-step",
                means="The optimizer steps twice on the same gradients. The loss may even look better for a while, "
                "because this effectively doubles the learning rate.",
                fix="Remove one of the two calls; with a GradScaler, call only `scaler.step(optimizer)`.",
                leads_to=(Effect.BLOWS_UP,),
            ),
        ),
    ),
    Rule(
        order=660,
        checks="optimizers that never step",
        find=missing_steps,
        needs=(needs.structure, needs.optimizer, _enough_backwards),
        codes=(
            Code(
                name="missing-step",
                means="Backward computes gradients, but the optimizer never steps: the weights never change.",
                fix="Call `optimizer.step()` after backward; if gradients are accumulated, check that the step is ever "
                "reached.",
                leads_to=(Effect.STOPS_LEARNING,),
            ),
        ),
    ),
)
