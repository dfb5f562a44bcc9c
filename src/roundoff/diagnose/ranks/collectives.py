"""The rule for ranks that take a different number of steps, so that one waits for a partner that never comes."""

from __future__ import annotations

from roundoff.diagnose.ranks.agreement import is_parallel
from roundoff.runs import Finding, Run, Severity
from roundoff.words import plural

# == The rule for parameters of a parallel model that no loss depends on.


def unused_parameters(run: Run) -> list[Finding]:
    """Find parameters of a parallel model without gradient on any rank; an error where the exchange waits for them."""
    if len(run.ranks) < 2 or not is_parallel(run):
        return []
    unused: set[str] | None = None
    order: list[str] = []
    for rank in run.ranks:
        facts = [
            fact for s in run.structures(rank=rank)[:1] for fact in s.parameters if fact.requires_grad and fact.name
        ]
        names = [str(fact.name) for fact in facts if not fact.has_gradient and not fact.is_reached]
        order = order or names
        unused = set(names) if unused is None else unused & set(names)
    kept = [name for name in order if unused and name in unused]
    has_failed = any(
        anomaly.kind == "exception" and "reduction" in str(anomaly.detail.get("message"))
        for _, anomaly in run.anomalies()
    )
    return [_finding(kept, has_failed=has_failed)] if kept else []


def _finding(names: list[str], *, has_failed: bool) -> Finding:
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    waits = "the exchange of gradients waits for them and fails in the next step" if has_failed else "they never learn"
    return Finding(
        rule="unused-parameter",
        severity=Severity.ERROR if has_failed else Severity.NOTE,
        confidence=0.95,
        step=0,
        phase="backward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title=f"no loss depends on {plural(len(names), 'parameter')}",
        why=f"backward reaches {shown} on no rank, so that {waits}",
        fix="use their output in the loss, remove them, or freeze them before the model is made parallel; if it "
        "changes from step to step which are used: DistributedDataParallel(..., find_unused_parameters=True)",
        evidence=({"parameters": list(names)},),
    )


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
