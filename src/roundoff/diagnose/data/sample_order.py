"""Which samples came when: label counts, and the order and repetitions across epochs and ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from roundoff.diagnose.batches import Epoch, first_input, sample_hashes, targets_of, training_epochs
from roundoff.runs import EpochDetail, Run

MAX_EPOCHS = 20
"""Of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSeen:
    """What one rank received in one epoch, as far as it was observed."""

    rank: int
    epoch: int
    """Counted from 0."""
    first_step: int
    last_step: int
    sampler: str
    """The class of its sampler; empty if no DataLoader was seen."""
    num_samples: int
    num_again: int
    """Samples that had occurred before in the same epoch."""
    num_elsewhere: int
    """Samples that another rank received in the same epoch too."""
    is_same_order: bool | None
    """Whether its batches are those of the first epoch in the same order; None for the first epoch, or if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """How often each label was seen in the observed steps."""

    counts: Mapping[int, int]
    """In the order of the labels."""
    num_ignored: int
    num_steps: int


def label_counts(run: Run) -> LabelCounts | None:
    """Count the labels of all ranks; None if targets are not integers, or there are too many different ones."""
    counts: Counter[int] = Counter()
    num_ignored = num_steps = 0
    for rank in run.ranks:
        for batch in run.inputs(rank=rank):
            ignored = {-100, batch.criterion_settings.get("ignore_index")}
            counted = [target for target in targets_of(batch) if target.counts]
            num_steps += bool(counted)
            for target in counted:
                for text, num in target.counts.items():
                    label = _label(text)
                    if label in ignored:
                        num_ignored += num
                    else:
                        counts[label] += num
    if not counts:
        return None
    return LabelCounts(counts=dict(sorted(counts.items())), num_ignored=num_ignored, num_steps=num_steps)


def _label(text: str) -> int:
    """Return a label as a number: a class, or 1 for True and 0 for False."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else int(text == "True")


def epochs_seen(run: Run) -> list[EpochSeen]:
    """Return the first epochs of every rank, by rank and in order; empty if no samples were hashed."""
    hashes: dict[tuple[int, int], list[int]] = {}
    epochs: dict[tuple[int, int], Epoch] = {}
    batches: dict[int, dict[int, str]] = {}
    for rank in run.ranks:
        given = first_input(run, rank)
        if given is None:
            continue
        place, seen = given
        batches[rank] = {step: tensor.hash for step, tensor in seen}
        whole = Epoch(first_step=seen[0][0], end_step=seen[-1][0] + 1, detail=EpochDetail())
        for number, epoch in enumerate((training_epochs(run, rank) or [whole])[:MAX_EPOCHS]):
            found = sample_hashes(run, rank, place, epoch=epoch)
            if found:
                hashes[rank, number], epochs[rank, number] = found, epoch
    found_epochs = []
    for (rank, number), epoch in epochs.items():
        mine, first = hashes[rank, number], epochs.get((rank, 0))
        others = {each for (of, at), found in hashes.items() if at == number and of != rank for each in found}
        found_epochs.append(
            EpochSeen(
                rank=rank,
                epoch=number,
                first_step=epoch.first_step,
                last_step=epoch.end_step - 1,
                sampler=str(epoch.detail.sampler or ""),
                num_samples=len(mine),
                num_again=len(mine) - len(set(mine)),
                num_elsewhere=sum(each in others for each in mine),
                is_same_order=None if not number or first is None else _is_same(first, epoch, batches[rank]),
            )
        )
    return found_epochs


def _is_same(first: Epoch, later: Epoch, batches: Mapping[int, str]) -> bool | None:
    """Say whether the batches at the same positions of two epochs are equal; None if there are none to compare."""
    ahead = later.first_step - first.first_step
    pairs = [
        (batches[step - ahead], batches[step])
        for step in range(later.first_step, later.end_step)
        if step in batches and first.first_step <= step - ahead < first.end_step and step - ahead in batches
    ]
    return all(one == other for one, other in pairs) if pairs else None
