"""How ranks divide the work: the data that each reads, the steps that each takes, and reductions without a partner."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.ranks.agreement import (
    batch_hashes,
    exchanges_activations,
    is_parallel,
    is_sharded,
    sharded_parameters,
)
from roundoff.diagnose.rule import Code, error, rule
from roundoff.runs import Call, EpochDetail, ExceptionDetail, Finding, Run, Severity
from roundoff.words import join_names, plural

_MIN_STEPS = 3


@rule(
    Code(
        name="rank-data-duplicate",
        means="Two ranks get the same batches, so the second computes nothing new.",
        detected="Hashes of the inputs are the same on two ranks in every observed step.",
        fix="Give the DataLoader a DistributedSampler, or shard the data by rank.",
    ),
    Code(
        name="epoch-order-repeated",
        means="`set_epoch` of a DistributedSampler is never called, so every epoch has the same order.",
        detected="The batches of an epoch have the same hashes as those of the epoch before, and the sampler's epoch "
        "has not changed.",
        fix="Call `sampler.set_epoch(epoch)` at the start of every epoch.",
    ),
    order=1030,
    checks="the data that each rank reads",
    needs=[needs.several_ranks, needs.inputs],
)
def data_of_ranks(run: Run) -> list[Finding | None]:
    """Find ranks that get the same batches, and samplers whose `set_epoch` is never called."""
    if len(run.ranks) < 2:
        return []
    return [_duplicates(run), _repeated_order(run)]


def _share_each_batch(run: Run) -> bool:
    """Say whether ranks compute parts of one layer: then they need the same batch. FSDP gathers the layers instead."""
    if is_sharded(run):
        return False
    return bool(sharded_parameters(run)) or (exchanges_activations(run) and not is_parallel(run))


def _duplicates(run: Run) -> Finding | None:
    if _share_each_batch(run):
        return None
    first = run.ranks[0]
    reference = batch_hashes(run, first)
    for rank in run.ranks[1:]:
        batches = batch_hashes(run, rank)
        shared = sorted(set(reference) & set(batches))
        same = [step for step in shared if reference[step] == batches[step]]
        if len(shared) < _MIN_STEPS or len(same) < len(shared) or len({reference[step] for step in same}) == 1:
            continue
        return error(
            rule="rank-data-duplicate",
            confidence=0.95,
            step=same[0],
            rank=rank,
            phase="forward",
            title=f"ranks {first} and {rank} get the same batches",
            why=f"the inputs of all {plural(len(same), 'observed step')} are bitwise equal on both ranks: the "
            "second computes nothing new",
            fix="give the DataLoader a DistributedSampler (and call its set_epoch), or shard the data by rank",
            evidence=({"steps": [*same[:20]], "num_steps": len(same), "ranks": [first, rank]},),
        )
    return None


def _repeated_order(run: Run) -> Finding | None:
    rank = run.ranks[0]
    batches = batch_hashes(run, rank)
    by_loader: dict[object, list[Call]] = {}
    for call in run.calls(rank=rank):
        is_distributed = call.call == "epoch" and call.detail_as(EpochDetail).set_epoch is not None
        if is_distributed and call.detail_as(EpochDetail).shuffle is not False:
            by_loader.setdefault(call.detail_as(EpochDetail).loader, []).append(call)
    for epochs in by_loader.values():
        numbers = {call.detail_as(EpochDetail).set_epoch for call in epochs}
        length = epochs[0].detail_as(EpochDetail).num_batches
        if len(epochs) < 2 or len(numbers) > 1 or not isinstance(length, int):
            continue
        repeats = [step for step in sorted(batches) if step >= length and batches.get(step - length) == batches[step]]
        pairs = [step for step in sorted(batches) if step - length in batches]
        if len(repeats) >= min(_MIN_STEPS, length) and len(repeats) == len(pairs):
            return _repeated_data_finding(rank, repeats[0], epochs)
    return None


def _repeated_data_finding(rank: int, step: int, epochs: list[Call]) -> Finding:
    number = epochs[0].detail_as(EpochDetail).set_epoch
    return error(
        rule="epoch-order-repeated",
        confidence=0.95,
        step=step,
        rank=rank,
        phase="forward",
        title="every epoch has the same order",
        why=f"set_epoch was {number} in all {plural(len(epochs), 'epoch')}, and from step {step} on the batches are "
        "bitwise those of the epoch before: the sampler shuffles by its epoch number",
        fix="call sampler.set_epoch(epoch) at the start of every epoch",
        evidence=({"epochs": len(epochs), "set_epoch": number},),
    )


_COLLECTIVE_WORDS = ("gloo", "nccl", "closed by peer", "timed out", "timeout", "collective", "rank")


@rule(
    Code(
        name="unused-parameter",
        means="No loss depends on some parameters of a parallel model, and the gradient reduction waits for them.",
        fix="Use, remove or freeze them before wrapping the model; or set `find_unused_parameters=True`.",
    ),
    order=1010,
    checks="unused parameters of parallel models",
    needs=[
        needs.several_ranks,
        needs.some(is_parallel, "no model is wrapped in DistributedDataParallel"),
    ],
)
def unused_parameters(run: Run) -> Finding | None:
    """Find parameters of a parallel model without a gradient on any rank; an error if the reduction waits for them."""
    if len(run.ranks) < 2 or not is_parallel(run):
        return None
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
        anomaly.kind == "exception" and "reduction" in anomaly.detail_as(ExceptionDetail).message
        for _, anomaly in run.anomalies()
    )
    if not (names):
        return None
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


@rule(
    Code(
        name="collective-mismatch",
        means="A rank took fewer steps than another, which now waits for a partner that never arrives. Since then, "
        "each reduction mixed gradients of different steps.",
        fix="Let every rank take every step: equal numbers of batches, no `continue` that depends on the rank's data; "
        "or `torch.distributed.algorithms.Join`.",
    ),
    order=1050,
    checks="ranks that take different numbers of steps",
    needs=[needs.several_ranks],
)
def mismatched_collectives(run: Run) -> Finding | None:
    """Find a rank that ended normally after fewer steps, while another failed or hung in a later collective."""
    if len(run.ranks) < 2:
        return None
    steps = {rank: len(run.metrics(rank=rank)) for rank in run.ranks}
    behind = min(run.ranks, key=lambda rank: steps[rank])
    ahead = [rank for rank in run.ranks if steps[rank] > steps[behind] and _waits(run, rank)]
    if not ahead or _has_failed(run, behind) or _hangs(run, behind):
        return None
    waiting, last = ahead[0], max(0, steps[ahead[0]] - 1)
    num_backwards = {rank: sum(call.call == "backward" for call in run.calls(rank=rank)) for rank in (waiting, behind)}
    return error(
        rule="collective-mismatch",
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


def _waits(run: Run, rank: int) -> bool:
    """Say whether a rank ended in an exception of a collective, or hung."""
    messages = [
        a.detail_as(ExceptionDetail).message.lower() for _, a in run.anomalies(rank=rank) if a.kind == "exception"
    ]
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
