"""The rule for optimizers that never step."""

from __future__ import annotations

from collections import Counter

from roundoff.diagnose.loop_calls import told_once
from roundoff.diagnose.numbers import plural
from roundoff.runs import Finding, Run, Severity, Structure

_LEAST_BACKWARDS = 10
"""Fewer may be the microbatches of a step that never came."""


def missing_steps(run: Run) -> list[Finding]:
    """Find backwards that no optimizer ever made use of, although there is one for these parameters."""
    return told_once(run, _of_rank)


def _of_rank(run: Run, rank: int) -> list[Finding]:
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
