"""Steps that gave a different result when they were replayed."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, rule
from roundoff.runs import Event, Finding, ReplayInfo, Run


@rule(
    Code(
        name="nondeterministic-step",
        means="A step replayed from the same state, batch and random generators gave a different result: something "
        "uses unseeded randomness or data, or sums in a varying order.",
        fix="Use the random generators of torch, numpy or random; `torch.use_deterministic_algorithms(True)` names ops "
        "whose order varies.",
    ),
    order=1110,
    checks="replays that differ from their step",
    needs=[needs.some(lambda run: run.replayed_steps, "no step was replayed")],
)
def replays_that_differ(run: Run) -> list[Finding]:
    """Find the first replayed step of each rank whose results were not bitwise identical.

    Compiled code runs eagerly in a replay and agrees only up to rounding: that is not a fault.
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

    Both must contain the step, which the run does only for the first steps. Inputs are skipped: they are results of
    earlier ops.
    """
    hashes = {event.key: event.hash for event in run.iter_events(step=step, rank=rank)}
    for event in sorted(replay.iter_events(step=step, rank=rank), key=lambda event: event.order):
        is_result = event.output.startswith("output")
        if is_result and hashes.get(event.key, event.hash) != event.hash:
            return event
    return None


def _finding(info: ReplayInfo, rank: int, event: Event | None) -> Finding:
    what = f"{info.first_difference} differs first" if info.first_difference else "the result differs"
    if event is not None:
        what = f"{event.op_name} in {event.site} is the first op with a different result"
    since = "" if info.step == info.snapshot_step else " (or from an earlier step, to rebuild it)"
    return error(
        rule="nondeterministic-step",
        confidence=0.95 if event is not None else 0.9,
        step=info.step,
        rank=rank,
        phase=event.phase if event is not None else None,
        site=event.site if event is not None else None,
        op=event.op_name if event is not None else None,
        source=event.source if event is not None else None,
        title="the step is not reproducible",
        why=f"replayed from the same state, batch and random generators{since}, {what}: something uses unseeded "
        "randomness or data, or sums in a varying order",
        fix="use the random generators of torch, numpy or random, which a replay restores; "
        "torch.use_deterministic_algorithms(True) names ops whose order varies",
        evidence=({"first_difference": info.first_difference},),
    )
