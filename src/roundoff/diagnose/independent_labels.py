"""Labels that have nothing to do with their inputs: one batch can be learned by heart, the data set cannot."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from roundoff.diagnose.batches import ASKS_YES_OR_NO, CLASSIFIES, targets_of
from roundoff.diagnose.numbers import short
from roundoff.runs import BatchFacts, Finding, JsonValue, Metrics, Run, Severity, TensorFacts

_FEWEST_STEPS = 100
_OF_CHANCE = 0.93
"""A loss that stays above this part of what knowing nothing gives has learned nothing of the data set."""
_OVERFITTED = 0.9
"""A loss on one batch that falls to this part of chance within a few steps shows that model and optimizer can learn."""
_TIMES_LESS = 3.0
"""So many times less than on one batch must the training have learned, in many more steps."""
_TIMES_LONGER = 3
_SQUARES = ("mse_loss", "MSELoss")


def independent_labels(run: Run) -> list[Finding]:
    """Find a training that stays at chance though the same optimizer learns any one batch by heart."""
    batches = [batch for batch in run.inputs(rank=0) if targets_of(batch)]
    chance = _chance(batches)
    losses = [metric for metric in run.metrics(rank=0) if metric.loss is not None and math.isfinite(metric.loss)]
    if chance is None or len(losses) < _FEWEST_STEPS:
        return []
    late = _median(losses[len(losses) // 2 :])
    if not _OF_CHANCE * chance < late < 1.5 * chance:
        return []
    for probe in run.probes():
        if probe.get("probe") == "overfit":
            tried = [loss for loss in _listed(probe.get("losses")) if isinstance(loss, float)]
            if _can_learn(tried, chance=chance, late=late) and len(losses) >= _TIMES_LONGER * len(tried):
                return [_finding(chance, late, len(losses), tried)]
    return []


def _chance(batches: list[BatchFacts]) -> float | None:
    """Return the loss of a model that knows how often each label occurs and nothing else; None if that is not known."""
    counts: Counter[str] = Counter()
    variances: list[float] = []
    for batch in batches:
        settings, targets = batch.criterion_settings, targets_of(batch)
        if settings.get("reduction", "mean") != "mean" or settings.get("label_smoothing") or len(targets) != 1:
            return None
        if batch.criterion in CLASSIFIES:
            ignored = {"-100", str(settings.get("ignore_index"))}
            counts.update({key: num for key, num in targets[0].counts.items() if key not in ignored})
        elif batch.criterion in ASKS_YES_OR_NO and _is_yes_or_no(targets[0]):
            num_yes = round((targets[0].mean or 0.0) * targets[0].shape[0])
            counts.update({"1": num_yes, "0": targets[0].shape[0] - num_yes})
        elif batch.criterion in _SQUARES and targets[0].std:
            variances.append(targets[0].std ** 2)
        else:
            return None
    if variances:
        return None if counts else statistics.mean(variances)
    shares = [num / counts.total() for num in counts.values() if num]
    return -sum(share * math.log(share) for share in shares) if len(shares) > 1 else None


def _is_yes_or_no(target: TensorFacts) -> bool:
    """Say whether there is one answer per sample, 0 or 1: only those have this deviation."""
    if target.mean is None or target.std is None or math.prod(target.shape) != target.shape[0]:
        return False
    return math.isclose(target.std**2, target.mean * (1 - target.mean), rel_tol=1e-6, abs_tol=1e-9)


def _median(metrics: list[Metrics]) -> float:
    return statistics.median(metric.loss or 0.0 for metric in metrics)


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _can_learn(tried: list[float], *, chance: float, late: float) -> bool:
    if len(tried) < 2 or min(tried) >= _OVERFITTED * min(chance, tried[0]):
        return False
    return chance - min(tried) > _TIMES_LESS * (chance - late)


def _finding(chance: float, late: float, num_steps: int, tried: list[float]) -> Finding:
    return Finding(
        rule="labels-independent",
        severity=Severity.ERROR,
        confidence=0.8,
        step=0,
        phase="forward",
        title="the labels have nothing to do with the inputs",
        why=f"after {num_steps} steps the loss is {short(late)}, and who knows only how often each label occurs gets "
        f"{short(chance)}; on one batch alone it falls from {short(tried[0])} to {short(min(tried))} within "
        f"{len(tried)} steps, so the model and the optimizer can learn",
        fix="look at some samples with their labels: two files sorted differently, inputs shuffled without their "
        "labels, an index off by one",
        evidence=({"chance": chance, "loss": late, "overfit": [*tried]},),
    )
