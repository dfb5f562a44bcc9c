"""The rules for what ranks read: the same batches, or the same order in every epoch."""

from __future__ import annotations

from roundoff.runs import Call, Finding, Run, Severity
from roundoff.words import plural

RANK_DATA_CODES = ("rank-data-duplicate", "epoch-order-repeated")
_LEAST_STEPS = 3


def data_of_ranks(run: Run) -> list[Finding]:
    """Find ranks that are given the same batches, and samplers that were never told of a new epoch."""
    if len(run.ranks) < 2:
        return []
    return [*_duplicates(run), *_repeated_order(run)]


def batch_hashes(run: Run, rank: int) -> dict[int, str]:
    """Return the hash of what each step's model was given first."""
    found: dict[int, str] = {}
    for batch in run.inputs(rank=rank):
        hashes = [tensor.hash for tensor in batch.tensors if not tensor.is_target and tensor.hash]
        if hashes:
            found[batch.step] = hashes[0]
    return found


def _duplicates(run: Run) -> list[Finding]:
    first = run.ranks[0]
    reference = batch_hashes(run, first)
    for rank in run.ranks[1:]:
        batches = batch_hashes(run, rank)
        shared = sorted(set(reference) & set(batches))
        same = [step for step in shared if reference[step] == batches[step]]
        if len(shared) < _LEAST_STEPS or len(same) < len(shared) or len({reference[step] for step in same}) == 1:
            continue
        return [
            Finding(
                rule="rank-data-duplicate",
                severity=Severity.ERROR,
                confidence=0.95,
                step=same[0],
                rank=rank,
                phase="forward",
                title=f"ranks {first} and {rank} are given the same batches",
                why=f"the inputs of all {plural(len(same), 'step')} that were looked at are the same, bit for bit, on "
                "both ranks: the second computes nothing that the first does not",
                fix="give the DataLoader a DistributedSampler (and call its set_epoch), or shard the data by rank",
                evidence=({"steps": [*same[:20]], "ranks": [first, rank]},),
            )
        ]
    return []


def _repeated_order(run: Run) -> list[Finding]:
    rank = run.ranks[0]
    batches = batch_hashes(run, rank)
    by_loader: dict[object, list[Call]] = {}
    for call in run.calls(rank=rank):
        is_distributed = call.call == "epoch" and call.detail.get("set_epoch") is not None
        if is_distributed and call.detail.get("shuffle") is not False:
            by_loader.setdefault(call.detail.get("loader"), []).append(call)
    for epochs in by_loader.values():
        told = {call.detail.get("set_epoch") for call in epochs}
        length = epochs[0].detail.get("num_batches")
        if len(epochs) < 2 or len(told) > 1 or not isinstance(length, int):
            continue
        repeats = [step for step in sorted(batches) if step >= length and batches.get(step - length) == batches[step]]
        pairs = [step for step in sorted(batches) if step - length in batches]
        if len(repeats) >= min(_LEAST_STEPS, length) and len(repeats) == len(pairs):
            return [_repeated(run, rank, repeats[0], epochs)]
    return []


def _repeated(run: Run, rank: int, step: int, epochs: list[Call]) -> Finding:
    number = epochs[0].detail.get("set_epoch")
    return Finding(
        rule="epoch-order-repeated",
        severity=Severity.ERROR,
        confidence=0.95,
        step=step,
        rank=rank,
        phase="forward",
        title="every epoch has the same order",
        why=f"the sampler was at epoch {number} in all of {plural(len(epochs), 'epoch')}, and the batches from step "
        f"{step} on are those of the epoch before, bit for bit: it shuffles by its epoch's number",
        fix="call sampler.set_epoch(epoch) at the start of every epoch",
        evidence=({"epochs": len(epochs), "set_epoch": number},),
    )
