"""The rule for an optimizer that steps twice on one backward."""

from __future__ import annotations

from roundoff.diagnose.loop_calls import loop_steps, told_once
from roundoff.diagnose.numbers import plural
from roundoff.runs import Call, Finding, Run, Severity


def double_steps(run: Run) -> list[Finding]:
    """Find an optimizer that stepped again with neither a backward nor a zero_grad since it did."""
    return told_once(run, _of_rank)


def _of_rank(run: Run, rank: int) -> list[Finding]:
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
