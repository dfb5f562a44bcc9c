"""The rule for ranks that take a different number of steps, so that one waits for a partner that never comes."""

from __future__ import annotations

from roundoff.runs import Finding, Run, Severity

_OF_COLLECTIVES = ("gloo", "nccl", "closed by peer", "timed out", "timeout", "collective", "rank")


def mismatched_collectives(run: Run) -> list[Finding]:
    """Find a rank that ended well with fewer steps, while another failed or hung in a collective of a later one."""
    if len(run.ranks) < 2:
        return []
    steps = {rank: len(run.metrics(rank=rank)) for rank in run.ranks}
    behind = min(run.ranks, key=lambda rank: steps[rank])
    ahead = [rank for rank in run.ranks if steps[rank] > steps[behind] and _waits(run, rank)]
    if not ahead or _has_failed(run, behind) or _hangs(run, behind):
        return []
    waiting, last = ahead[0], max(0, steps[ahead[0]] - 1)
    num_backwards = {rank: sum(call.call == "backward" for call in run.calls(rank=rank)) for rank in (waiting, behind)}
    return [
        Finding(
            rule="collective-mismatch",
            severity=Severity.ERROR,
            confidence=0.9,
            step=last,
            rank=behind,
            phase="backward",
            title=f"rank {behind} took fewer steps than rank {waiting}",
            why=f"rank {waiting} waits in a collective of its step {last}, number {steps[waiting]} of its exchanges, "
            f"and rank {behind} ended after {steps[behind]}: it left out a batch or had fewer, and since then each "
            "exchange mixed gradients of different steps",
            fix="let every rank take every step: same number of batches (drop_last=True, DistributedSampler), no "
            "`continue` that depends on the rank's own data; or wrap the loop in torch.distributed.algorithms.Join",
            evidence=(
                {"steps": {str(rank): count for rank, count in steps.items()}},
                {"backwards": {str(rank): count for rank, count in num_backwards.items()}},
            ),
        )
    ]


def _waits(run: Run, rank: int) -> bool:
    """Say whether a rank ended in an exception of a collective, or hung."""
    messages = [str(a.detail.get("message", "")).lower() for _, a in run.anomalies(rank=rank) if a.kind == "exception"]
    if any(word in message for message in messages for word in _OF_COLLECTIVES):
        return True
    return _hangs(run, rank)


def _hangs(run: Run, rank: int) -> bool:
    ending = run.ending(rank=rank)
    return ending is not None and ending.seconds_without_progress is not None and not ending.has_gone_on


def _has_failed(run: Run, rank: int) -> bool:
    """Say whether a rank ended by itself before its time: then that is what is wrong."""
    ending = run.ending(rank=rank)
    was_killed = ending is not None and ending.signal is not None and not ending.was_stopped
    return was_killed or (not _waits(run, rank) and any(a.kind == "exception" for _, a in run.anomalies(rank=rank)))
