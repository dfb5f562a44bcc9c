"""What ranks read: the same batches as another rank, or the same order in every epoch."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, Rule
from roundoff.runs import Call, EpochDetail, Finding, Run, Severity
from roundoff.words import plural

_MIN_STEPS = 3


def data_of_ranks(run: Run) -> list[Finding]:
    """Find ranks that get the same batches, and samplers whose `set_epoch` is never called."""
    if len(run.ranks) < 2:
        return []
    return [*_duplicates(run), *_repeated_order(run)]


def batch_hashes(run: Run, rank: int) -> dict[int, str]:
    """Return, by step, the hash of the first model input."""
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
        if len(shared) < _MIN_STEPS or len(same) < len(shared) or len({reference[step] for step in same}) == 1:
            continue
        return [
            Finding(
                rule="rank-data-duplicate",
                severity=Severity.ERROR,
                confidence=0.95,
                step=same[0],
                rank=rank,
                phase="forward",
                title=f"ranks {first} and {rank} get the same batches",
                why=f"the inputs of all {plural(len(same), 'observed step')} are bitwise equal on both ranks: the "
                "second computes nothing new",
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
            return [_repeated_data_finding(run, rank, repeats[0], epochs)]
    return []


def _repeated_data_finding(run: Run, rank: int, step: int, epochs: list[Call]) -> Finding:
    number = epochs[0].detail_as(EpochDetail).set_epoch
    return Finding(
        rule="epoch-order-repeated",
        severity=Severity.ERROR,
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


RULES = (
    Rule(
        order=1030,
        checks="the data that each rank reads",
        find=data_of_ranks,
        needs=(needs.several_ranks, needs.inputs),
        codes=(
            Code(
                name="rank-data-duplicate",
                means="Two ranks get the same batches, so the second computes nothing new.",
                detected="Hashes of the inputs are the same on two ranks in every observed step.",
                fix="Give the DataLoader a DistributedSampler, or shard the data by rank.",
            ),
            Code(
                name="epoch-order-repeated",
                means="`set_epoch` of a DistributedSampler is never called, so every epoch has the same order.",
                detected="The batches of an epoch have the same hashes as those of the epoch before, and the sampler's "
                "epoch has not changed.",
                fix="Call `sampler.set_epoch(epoch)` at the start of every epoch.",
            ),
        ),
    ),
)
