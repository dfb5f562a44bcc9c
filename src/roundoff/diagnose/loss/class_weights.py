"""Weights of classes that make frequent classes count even more."""

from __future__ import annotations

import math
from collections import Counter

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import targets_of
from roundoff.diagnose.rule import Code, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run

_MIN_TIMES = 2.0
"""By how much counts must differ before their weights can be the wrong way round."""
_MIN_TARGETS = 100


@rule(
    Code(
        name="class-weights-inverted",
        means="The loss gives frequent classes larger weights than rare ones: it makes the imbalance stronger that "
        "weights are meant to even out, and rare classes are hardly learned.",
        fix="Weight each class by the inverse of its count: `counts.sum() / (len(counts) * counts)`.",
    ),
    order=409,
    checks="weights of classes against how often the classes occur",
    needs=[
        needs.targets,
        needs.some(
            lambda run: any(call.class_weights for rank in run.ranks for call in run.criteria(rank=rank)),
            "no loss has weights for its classes",
        ),
    ],
)
@on_first_rank
def inverted_weights(run: Run, rank: int) -> Finding | None:
    """Find weights that grow with the counts of their classes: in the same order, and by as large a factor."""
    counts: Counter[int] = Counter()
    for batch in run.inputs(rank=rank):
        for target in targets_of(batch)[:1]:
            counts.update({int(value): number for value, number in target.counts.items()})
    call = next((call for call in run.criteria(rank=rank) if len(call.class_weights) > 1), None)
    if call is None or counts.total() < _MIN_TARGETS:
        return None
    pairs = [(counts[c], w) for c, w in enumerate(call.class_weights) if counts[c] and w > 0]
    if len(pairs) < 2:
        return None
    most, least = max(pairs), min(pairs)
    if most[0] < _MIN_TIMES * least[0] or most[1] < _MIN_TIMES * least[1] or _slope(pairs) < 0.5:
        return None
    return warning(
        rule="class-weights-inverted",
        confidence=0.9,
        step=call.step,
        rank=rank,
        phase="forward",
        source=call.source,
        title="the loss gives frequent classes larger weights than rare ones",
        why=f"the most frequent class has {most[0]} of {counts.total()} targets and the weight {format_short(most[1])}"
        f", the rarest {least[0]} and {format_short(least[1])}: weights grow with the counts",
        fix="use the inverse of the counts: weight = counts.sum() / (len(counts) * counts)",
        evidence=({"weights": list(call.class_weights), "counts": {str(c): n for c, n in counts.items()}},),
    )


def _slope(pairs: list[tuple[int, float]]) -> float:
    """Return by which power of the counts the weights grow: -1 for the inverse, 0 where they have nothing to do."""
    x, y = [math.log(count) for count, _ in pairs], [math.log(weight) for _, weight in pairs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread if spread else 0.0
