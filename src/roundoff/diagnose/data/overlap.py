"""Samples of the evaluation that the model has been trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import model_inputs
from roundoff.diagnose.rule import Code, FaultEffect, on_first_rank, rule, warning
from roundoff.runs import Finding, Run, TensorFacts, UnusedLoaderProbe

_MIN_SHARE, _MAX_SHARE, _MIN_SAMPLES = 0.05, 0.95, 5
"""Of an evaluation on training samples nearly all are known; the last batch of an epoch may have been left out."""
_MAX_COVERED = 0.9
"""An evaluation that covers more of the training samples is one of everything there is, on purpose."""
_MIN_KNOWN = 0.95
"""So many of the samples that come late must have come before: then all training samples have been seen."""
_MIN_NUMBERS = 8
_MIN_SPREAD = 1e4
"""So many different samples must be possible for each one that there is: otherwise two are equal by chance."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One call of the model in eval mode."""

    step: int
    hashes: Sequence[int]


@rule(
    Code(
        name="train-eval-overlap",
        means="A part of the samples of the evaluation are training samples: rows were copied or oversampled before "
        "the data was split, or the split overlaps. The evaluation measures what was memorized.",
        detected="Some of the evaluated samples have been trained on, and others in the same batches have not.",
        fix="Remove duplicates, split first, and oversample or augment the training part only.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    Code(
        name="eval-on-training-data",
        means="All samples of the evaluation are training samples, while a DataLoader with other data is never used: "
        "the wrong loader was passed to the evaluation, which measures what was memorized.",
        detected="Every evaluated sample has been trained on, and nothing was read from another DataLoader.",
        fix="Pass the loader of the validation data to the evaluation.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1407,
    checks="whether samples of the evaluation were trained on",
    needs=[
        needs.inputs,
        needs.some(lambda run: any(_looks(run, rank) for rank in run.ranks), "no samples were seen in eval mode"),
    ],
)
@on_first_rank
def overlapping_samples(run: Run, rank: int) -> Finding | None:
    """Find evaluations in whose batches some samples are bit for bit those of earlier training steps, and others not.

    All training samples must have been seen. A batch that consists of training samples is an evaluation on them, on
    purpose; so is an evaluation of nearly everything that is trained on.
    """
    for place, looks in _looks(run, rank).items():
        seen = model_inputs(run, rank).get(place, [])
        trained = [(step, hashed) for name, _, step, hashed in _rows(run, rank, "sample") if name == place]
        if not seen or not _is_rich(seen[0][1], len(trained)):
            continue
        first: dict[int, int] = {}
        for step, hashed in trained:
            first.setdefault(hashed, step)
        late = [look for look in looks if _are_all_known(trained, first, look.step)]
        mixed = [look for look in late if any(first.get(h, math.inf) > look.step for h in look.hashes)]
        samples = {h for look in mixed for h in look.hashes}
        shared = {h for look in mixed for h in look.hashes if first.get(h, math.inf) <= look.step}
        unused = run.probes(UnusedLoaderProbe)
        evaluated = {h for look in looks for h in look.hashes}
        if unused and len(evaluated) >= _MIN_SAMPLES and evaluated <= first.keys():
            return _wrong_loader(place, looks, unused[0], num_samples=len(evaluated), rank=rank)
        covered = {h for look in looks for h in look.hashes if h in first}
        is_much = max(_MIN_SAMPLES, _MIN_SHARE * len(samples)) <= len(shared) <= _MAX_SHARE * len(samples)
        if is_much and len(covered) < _MAX_COVERED * len(first):
            return _finding(place, mixed, num_shared=len(shared), num_samples=len(samples), rank=rank)
    return None


def _wrong_loader(
    place: str, looks: Sequence[_Look], unused: UnusedLoaderProbe, *, num_samples: int, rank: int
) -> Finding:
    name = unused.name or "another DataLoader"
    return warning(
        rule="eval-on-training-data",
        confidence=0.9,
        step=looks[0].step,
        rank=rank,
        phase="eval",
        site=place.rpartition("[")[0] or place.rpartition(":")[0],
        title=f"the evaluation reads the training data, and {name} is never used",
        why=f"all {num_samples} samples that the model is evaluated on are bit for bit samples of its training; "
        f"from {name}, with {unused.num_samples} other samples, nothing was ever read",
        fix=f"pass {unused.name or 'the loader of the validation data'} to the evaluation",
        evidence=({"num_samples": num_samples, "unused": unused.name, "num_unused": unused.num_samples},),
    )


def _are_all_known(trained: Sequence[tuple[int, int]], first: dict[int, int], step: int) -> bool:
    """Say whether all training samples had been seen by then: those of later steps are none but these."""
    later = [hashed for at, hashed in trained if at > step]
    return step > 0 and len(later) >= _MIN_NUMBERS and sum(first[h] <= step for h in later) >= _MIN_KNOWN * len(later)


def _looks(run: Run, rank: int) -> dict[str, list[_Look]]:
    """Return the evaluations whose samples were hashed, by place and in order."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for place, number, step, hashed in _rows(run, rank, "eval-sample"):
        found.setdefault((place, number, step), []).append(hashed)
    looks: dict[str, list[_Look]] = {}
    for (place, _, step), hashes in found.items():
        looks.setdefault(place, []).append(_Look(step, hashes))
    return looks


def _rows(run: Run, rank: int, kind: str) -> list[tuple[str, int, int, int]]:
    table = run.hashes(rank=rank)
    is_wanted = table.texts("kind").equals(kind)
    names = [name for name, wanted in zip(table["name"].to_list(), is_wanted.tolist(), strict=True) if wanted]
    numbers = (table.numbers(column)[is_wanted].tolist() for column in ("microbatch", "step", "hash"))
    return list(zip(names, *numbers, strict=True))


def _is_rich(tensor: TensorFacts, num_samples: int) -> bool:
    """Say whether samples are so rich that two are not the same by chance."""
    size = math.prod(tensor.shape[1:])
    if "float" in tensor.dtype:
        is_whole = all(x is not None and float(x).is_integer() for x in (tensor.min, tensor.max))
        return size > 1 and not is_whole
    values = (tensor.max or 0.0) - (tensor.min or 0.0) + 1
    return size >= _MIN_NUMBERS and size * math.log(values) > math.log(_MIN_SPREAD * num_samples)


def _finding(place: str, looks: Sequence[_Look], *, num_shared: int, num_samples: int, rank: int) -> Finding:
    return warning(
        rule="train-eval-overlap",
        confidence=0.9,
        step=looks[0].step,
        rank=rank,
        phase="eval",
        site=place.rpartition("[")[0] or place.rpartition(":")[0],
        title=f"{num_shared} of {num_samples} samples of the evaluation are training samples",
        why=f"{num_shared} of the {num_samples} different samples that the model is evaluated on from step "
        f"{looks[0].step} on are bit for bit samples of earlier training steps; the others in the same batches are new "
        "to it, so this is no evaluation on the training set",
        fix="remove duplicate rows before the split, and oversample or augment the training part only",
        evidence=({"num_shared": num_shared, "num_samples": num_samples},),
    )
