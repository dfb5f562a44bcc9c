"""Batches of a single class each: data that is sorted by class and was not shuffled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import ASKS_YES_OR_NO, CLASSIFIES, targets_of
from roundoff.diagnose.rule import Code, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import BatchFacts, CriterionCall, Finding, Run, TensorFacts
from roundoff.words import plural

_MIN_BATCHES = 8
_MIN_PURE = 0.6
"""The share of batches with a single class: only those at the borders between two classes have more."""
_MIN_SAMPLES = 4
_MIN_OTHERS = 2
"""So many batches of other classes than the most frequent one are no accident."""
_MAX_CHANCE = 0.1
"""How often a shuffled batch may have a single class: one class may be nearly all there is."""


@rule(
    Code(
        name="classes-in-order",
        means="Nearly every batch holds samples of a single class, while the classes change from batch to batch: the "
        "data is sorted by class and is not shuffled. Each batch teaches the model to answer its own class.",
        fix="`DataLoader(..., shuffle=True)`; where the data is a stream, shuffle it in a buffer, or before it is "
        "stored.",
    ),
    order=523,
    checks="batches that hold a single class each",
    needs=[
        needs.targets,
        needs.some(lambda run: any(_values(run, rank) for rank in run.ranks), "no classes were seen"),
    ],
)
@on_first_rank
def classes_in_order(run: Run, rank: int) -> Finding | None:
    """Find trainings whose batches nearly all have one class, more often than shuffling could explain.

    Where there are several targets in a step, as for real and generated samples, each may well be one class.
    """
    batches = _values(run, rank)
    pure = [(step, value) for step, size, value in batches if value is not None]
    if len(batches) < _MIN_BATCHES or len(pure) < _MIN_PURE * len(batches):
        return None
    counts = Counter(value for _, value in pure)
    size = min(size for _, size, _ in batches[:_MIN_BATCHES])
    chances = {value: (count / len(pure)) ** size for value, count in counts.items()}
    chance = sum(chances.values())
    if chance > _MAX_CHANCE:  # of the first steps more is observed, and all of them may be of the first class
        frequent = counts.most_common(1)[0][0]
        chance -= chances[frequent]
        if len(pure) - counts[frequent] < _MIN_OTHERS:
            return None
    if len(counts) < 2 or chance > _MAX_CHANCE:
        return None
    return _finding([value for _, value in pure], pure[0][0], len(batches), chance, rank)


def _values(run: Run, rank: int) -> list[tuple[int, int, float | None]]:
    """Return step, number of samples and the only class of each batch with classes; None where it has several."""
    looks = run.structures(rank=rank)
    if any(len(look.optimizers) > 1 for look in looks):
        return []
    inside = next((call for call in run.criteria(rank=rank) if call.function in CLASSIFIES), None)
    found = []
    for batch in run.inputs(rank=rank):
        targets = _classes_in(batch, inside)
        if not targets:
            continue
        target = targets[0]
        if len(targets) > 1 or not target.shape or target.shape[0] < _MIN_SAMPLES or target.min is None:
            return []
        found.append((batch.step, target.shape[0], target.min if target.min == target.max else None))
    return found


def _classes_in(batch: BatchFacts, inside: CriterionCall | None) -> list[TensorFacts]:
    """Return the classes that the loss function of a step was given, or one inside of a model: by their shape."""
    if batch.criterion in (*CLASSIFIES, *ASKS_YES_OR_NO):
        return targets_of(batch)
    if batch.criterion is not None or inside is None or len(inside.target_shape) != 1:
        return []
    return [x for x in batch.tensors if len(x.shape) == 1 and x.dtype == inside.target_dtype]


def _finding(values: Sequence[float], step: int, num_batches: int, chance: float, rank: int) -> Finding:
    order = list(dict.fromkeys(values))
    shown = ", ".join(f"{value:.0f}" for value in values[:12])
    return warning(
        rule="classes-in-order",
        confidence=0.9,
        step=step,
        rank=rank,
        title="each batch holds a single class",
        why=f"{len(values)} of {plural(num_batches, 'observed batch', 'observed batches')} have targets of one class "
        f"only, {len(order)} different ones in all ({shown}, ...); of shuffled batches a share of "
        f"{format_short(chance)} would. The data is sorted by class: each step unlearns what the one before has taught",
        fix="DataLoader(..., shuffle=True), or a permutation of the samples before each epoch",
        evidence=({"pure": len(values), "batches": num_batches, "classes": [*values[:40]]},),
    )
