"""The rule for steps that came out differently when they were replayed."""

from __future__ import annotations

from roundoff.runs import Event, Finding, ReplayInfo, Run, Severity


def replays_that_differ(run: Run) -> list[Finding]:
    """Find the first replayed step of each rank that was not bit for bit what it had been.

    Compiled code runs eagerly in a replay and agrees within its format only: that is no fault.
    """
    found: dict[int, Finding] = {}
    for step in run.replayed_steps:
        replay = run.replay(step)
        for rank in range(max(1, run.info.ranks)):
            info = replay.replay_info(rank=rank)
            if info is not None and info.is_identical is False and not info.is_eager and rank not in found:
                found[rank] = _finding(info, rank, first_difference(run, replay, step=step, rank=rank))
    return list(found.values())


def first_difference(run: Run, replay: Run, *, step: int, rank: int) -> Event | None:
    """Return the first result that differs between the events of the run itself and those of the replay.

    Both must hold the step, which the run does for the first ones only. Inputs are left out: they were results before.
    """
    theirs = {event.key: event.hash for event in run.iter_events(step=step, rank=rank)}
    for event in sorted(replay.iter_events(step=step, rank=rank), key=lambda event: event.order):
        is_result = event.output.startswith("output")
        if is_result and theirs.get(event.key, event.hash) != event.hash:
            return event
    return None


def _finding(info: ReplayInfo, rank: int, event: Event | None) -> Finding:
    what = f"{info.first_difference} differs first" if info.first_difference else "it differs"
    if event is not None:
        what = f"{event.op_name} in {event.site} is the first op that gives something else"
    since = "" if info.step == info.snapshot_step else " (or a step shortly before it, from which it was rebuilt)"
    return Finding(
        rule="nondeterministic-step",
        severity=Severity.ERROR,
        confidence=0.95 if event is not None else 0.9,
        step=info.step,
        rank=rank,
        phase=event.phase if event is not None else None,
        site=event.site if event is not None else None,
        op=event.op_name if event is not None else None,
        source=event.source if event is not None else None,
        title="the step does not repeat",
        why=f"replayed from the same state, batch and generators{since}, {what}: something draws on randomness or on "
        "data that nobody seeded, or adds up in an order that changes",
        fix="draw random numbers from torch, numpy or random, which are put back for a replay; "
        "torch.use_deterministic_algorithms(True) names ops whose order changes",
        evidence=({"first_difference": info.first_difference},),
    )
