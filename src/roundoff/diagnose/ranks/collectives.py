"""Gradient reductions that wait in vain: for unused parameters, or for a rank that takes fewer steps."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.ranks.agreement import is_parallel
from roundoff.diagnose.rule import Code, Rule
from roundoff.runs import Finding, Run, Severity
from roundoff.words import join_names, plural

_COLLECTIVE_WORDS = ("gloo", "nccl", "closed by peer", "timed out", "timeout", "collective", "rank")


def unused_parameters(run: Run) -> list[Finding]:
    """Find parameters of a parallel model without a gradient on any rank; an error if the reduction waits for them."""
    if len(run.ranks) < 2 or not is_parallel(run):
        return []
    unused: set[str] | None = None
    order: list[str] = []
    for rank in run.ranks:
        facts = [
            fact for s in run.structures(rank=rank)[:1] for fact in s.parameters if fact.requires_grad and fact.name
        ]
        of_rank = [str(fact.name) for fact in facts if not fact.has_gradient and not fact.is_reached]
        order = order or of_rank
        unused = set(of_rank) if unused is None else unused & set(of_rank)
    names = [name for name in order if unused and name in unused]
    has_failed = any(
        anomaly.kind == "exception" and "reduction" in str(anomaly.detail.get("message"))
        for _, anomaly in run.anomalies()
    )
    return [_unused_finding(names, has_failed=has_failed)] if names else []


def _unused_finding(names: list[str], *, has_failed: bool) -> Finding:
    effect = "the gradient reduction waits for them and fails in the next step" if has_failed else "they never learn"
    return Finding(
        rule="unused-parameter",
        severity=Severity.ERROR if has_failed else Severity.NOTE,
        confidence=0.95,
        step=0,
        phase="backward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title=f"no loss depends on {plural(len(names), 'parameter')}",
        why=f"backward does not reach {join_names(names, at_most=6)} on any rank, so {effect}",
        fix="use their output in the loss, remove them, or freeze them before wrapping the model; if different "
        "parameters are used in each step: DistributedDataParallel(..., find_unused_parameters=True)",
        evidence=({"parameters": list(names)},),
    )


def mismatched_collectives(run: Run) -> list[Finding]:
    """Find a rank that ended normally after fewer steps, while another failed or hung in a later collective."""
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
            why=f"rank {waiting} waits in a collective of step {last}, its reduction number {steps[waiting]}, but rank "
            f"{behind} ended after {steps[behind]}: it skipped a batch or had fewer, and since then each reduction "
            "mixed gradients of different steps",
            fix="let every rank take every step: the same number of batches (drop_last=True, DistributedSampler), no "
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
    if any(word in message for message in messages for word in _COLLECTIVE_WORDS):
        return True
    return _hangs(run, rank)


def _hangs(run: Run, rank: int) -> bool:
    ending = run.ending(rank=rank)
    return ending is not None and ending.seconds_without_progress is not None and not ending.has_gone_on


def _has_failed(run: Run, rank: int) -> bool:
    """Say whether a rank failed for a reason of its own: then that is the fault."""
    ending = run.ending(rank=rank)
    was_killed = ending is not None and ending.signal is not None and not ending.was_stopped
    return was_killed or (not _waits(run, rank) and any(a.kind == "exception" for _, a in run.anomalies(rank=rank)))


def _parallel_model(run: Run) -> str | None:
    return None if is_parallel(run) else "no model is wrapped in DistributedDataParallel"


RULES = (
    Rule(
        order=1010,
        checks="unused parameters of parallel models",
        find=unused_parameters,
        needs=(needs.several_ranks, _parallel_model),
        codes=(
            Code(
                name="unused-parameter",
                means="No loss depends on some parameters of a parallel model, and the gradient reduction waits for "
                "them.",
                fix="Use, remove or freeze them before wrapping the model; or set `find_unused_parameters=True`.",
            ),
        ),
    ),
    Rule(
        order=1050,
        checks="ranks that take different numbers of steps",
        find=mismatched_collectives,
        needs=(needs.several_ranks,),
        codes=(
            Code(
                name="collective-mismatch",
                means="A rank took fewer steps than another, which now waits for a partner that never arrives. Since "
                "then, each reduction mixed gradients of different steps.",
                fix="Let every rank take every step: equal numbers of batches, no `continue` that depends on the "
                "rank's data; or `torch.distributed.algorithms.Join`.",
            ),
        ),
    ),
)
