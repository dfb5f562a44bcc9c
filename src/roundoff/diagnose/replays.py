"""The rule for steps that came out differently when they were replayed."""

from __future__ import annotations

from roundoff.runs import Finding, Run, Severity


def replays_that_differ(run: Run) -> list[Finding]:
    """Find the first replayed step of each rank that was not bit for bit what it had been.

    Compiled code runs eagerly in a replay and agrees within its format only: that is no fault.
    """
    found = []
    seen: set[int] = set()
    for step in run.replayed_steps:
        replay = run.replay(step)
        for rank in range(max(1, run.info.ranks)):
            info = replay.replay_info(rank=rank)
            if info is not None and info.is_identical is False and not info.is_eager and rank not in seen:
                seen.add(rank)
                found.append(_finding(step, rank, info.first_difference, is_small=info.step == info.snapshot_step))
    return found


def _finding(step: int, rank: int, difference: str | None, *, is_small: bool) -> Finding:
    what = f"{difference} differs first" if difference else "it differs"
    since = "" if is_small else " (or a step shortly before it, from which it was rebuilt)"
    return Finding(
        rule="nondeterministic-step",
        severity=Severity.WARNING,
        confidence=0.9,
        step=step,
        rank=rank,
        title="the step does not repeat",
        why=f"replayed from the same state, batch and generators{since}, {what}: something in it draws on randomness "
        "or on data that nobody seeded, or adds up in an order that changes",
        fix="draw random numbers from torch, numpy or random, which are put back for a replay; "
        "torch.use_deterministic_algorithms(True) names ops whose order changes",
        evidence=({"first_difference": difference},),
    )
