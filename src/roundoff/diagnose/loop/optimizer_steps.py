"""The rule for an optimizer that steps twice on one backward."""

from __future__ import annotations

from collections import Counter

from roundoff.diagnose.loop_calls import first_rank_with, loop_steps
from roundoff.runs import Call, Finding, Run, Severity, Structure
from roundoff.words import plural

# == The rule for optimizers that never step.

_LEAST_BACKWARDS = 10
"""Fewer may be the microbatches of a step that never came."""


def missing_steps(run: Run) -> list[Finding]:
    """Find backwards that no optimizer ever made use of, although there is one for these parameters."""
    return first_rank_with(run, _missing_steps_of_rank)


def _missing_steps_of_rank(run: Run, rank: int) -> list[Finding]:
    calls = run.calls(rank=rank)
    made = Counter(call.call for call in calls)
    structures = run.structures(rank=rank)
    if made["backward"] < _LEAST_BACKWARDS or not structures:
        return []
    stepped = {call.detail.get("optimizer") for call in calls if call.call == "step"}
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
            why=f"backward ran {plural(made['backward'], 'time')} or more and gave gradients to the parameters of "
            f"{', '.join(idle)}, but its step was never called{several}: these weights never change",
            fix="call optimizer.step() after backward"
            + ("" if made["zero_grad"] else "; if gradients are accumulated, see that the step is ever reached"),
            evidence=({"calls": dict(made)},),
        )
    ]


def _with_gradients(structure: Structure) -> list[str]:
    """Return the optimizers that hold parameters which backward reaches, and which nobody else trains."""
    reached = [parameter.optimizers for parameter in structure.parameters if parameter.is_reached]
    return [entry.name for entry in structure.optimizers if (entry.name,) in reached]


def _weights_changed(run: Run, rank: int) -> bool:
    """Say whether somebody changed the weights between steps 0 and 1 by other means."""
    first, second = (
        {(event.parameter, event.output): event.hash for event in run.iter_events(step=step, rank=rank, op="parameter")}
        for step in (0, 1)
    )
    return any(second.get(key, known) != known for key, known in first.items())


def double_steps(run: Run) -> list[Finding]:
    """Find an optimizer that stepped again with neither a backward nor a zero_grad since it did."""
    return first_rank_with(run, _double_steps_of_rank)


def _double_steps_of_rank(run: Run, rank: int) -> list[Finding]:
    pairs = _second_steps(run, rank)
    if not pairs:
        return []
    first, second = pairs[0]
    ways = ["by the scaler" if call.detail.get("by_scaler") else "by itself" for call in (first, second)]
    told = f", {ways[0]} and {ways[1]}" if ways[0] != ways[1] else ""
    return [
        Finding(
            rule="double-step",
            severity=Severity.ERROR,
            confidence=0.97,
            step=second.step,
            rank=rank,
            phase="optimizer",
            title="the optimizer steps twice on the same gradients",
            why=f"{second.detail.get('optimizer')} stepped two times after one backward{told}, with nothing in between "
            f"that made new gradients; so {plural(len(pairs), 'time')}, first with step {second.step}",
            fix="leave one of the two calls out; with a GradScaler only scaler.step(optimizer) steps",
            evidence=({"steps": [second.step for _, second in pairs[:20]]},),
        )
    ]


def _second_steps(run: Run, rank: int) -> list[tuple[Call, Call]]:
    """Return each pair of steps of one optimizer on one backward.

    Gradients may be made by other means than backward: only an optimizer that had one before its first step counts.
    """
    pairs: list[tuple[Call, Call]] = []
    last: dict[object, Call] = {}  # the last step of each optimizer that had a backward and nothing since
    has_backward = False
    step_before = -1
    for loop_step in loop_steps(run, rank):
        if loop_step.step > step_before + 1:
            last.clear()  # what happened in between was not written down
        step_before = loop_step.step
        for call in loop_step.calls:
            if call.call in ("backward", "zero_grad", "load"):
                last.clear()
                has_backward = call.call == "backward" or (has_backward and call.call == "load")
            elif call.call == "step":
                name = call.detail.get("optimizer")
                if name in last:
                    pairs.append((last[name], call))
                elif has_backward:
                    last[name] = call
    return pairs
