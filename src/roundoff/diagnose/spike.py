"""Jumps of the loss: when one counts, and the rule that finds them in a run."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roundoff.diagnose.numbers import plural, short
from roundoff.runs import Finding, Metrics, Run, Severity

WINDOW = 50
"""So many losses before a step are what it is judged by."""
WARM_UP = 20
"""So many losses must be known before one can stand out."""
NUM_DEVIATIONS = 10.0
NUM_LOG_DEVIATIONS = 8.0
_DEVIATION_OF_MAD = 1.48
"""What turns a median absolute deviation into a standard deviation, for normal noise."""
LEAST_RATIO = 2.0
LEAST_JUMP = 0.5
_MANY_TIMES = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss that stands far above those before it."""

    loss: float
    median: float
    """Of the losses before it."""
    limit: float
    """What it would have had to stay below."""


class SpikeDetector:
    """Says of each loss whether it jumped; a few microseconds a step.

    A jump is above the median of the last losses by ten deviations, above twice the median, and above it by 0.5. Where
    losses spread over magnitudes by nature it must also be far out among those. Losses that are not finite are left
    out: they are no spikes but worse. A loss that jumped still enters the window: a new level is told once.
    """

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self._sorted: list[float] = []

    def see(self, loss: float) -> Spike | None:
        """Take the loss of the next step; return the spike if it is one."""
        if not math.isfinite(loss):
            return None
        spike = self._judge(loss)
        self._window.append(loss)
        bisect.insort(self._sorted, loss)
        if len(self._window) > WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._window.popleft())]
        return spike

    def _judge(self, loss: float) -> Spike | None:
        known = self._sorted
        if len(known) < WARM_UP:
            return None
        median = known[len(known) // 2]
        if loss <= median + LEAST_JUMP or loss <= LEAST_RATIO * median:
            return None  # nearly always, and cheap
        limit = max(median + NUM_DEVIATIONS * _deviation(known, median), known[-1])
        if known[0] > 0:
            magnitudes = [math.log(value) for value in known]
            middle = math.log(median)
            limit = max(limit, math.exp(min(700.0, middle + NUM_LOG_DEVIATIONS * _deviation(magnitudes, middle))))
        limit = max(limit, median + LEAST_JUMP, LEAST_RATIO * median)
        return Spike(loss=loss, median=median, limit=limit) if loss > limit else None


def _deviation(values: Sequence[float], median: float) -> float:
    """Estimate the standard deviation from the median absolute one, which a few outliers do not move."""
    distances = sorted(abs(value - median) for value in values)
    return _DEVIATION_OF_MAD * distances[len(distances) // 2]


def loss_spikes(run: Run) -> list[Finding]:
    """Find the first jump of the loss on each rank; a warning, since many a training recovers from one."""
    return [finding for rank in run.ranks for finding in _of_rank(run, rank)]


def _of_rank(run: Run, rank: int) -> list[Finding]:
    metrics = run.metrics(rank=rank)
    spikes = list(_spikes(metrics))
    if not spikes:
        return []
    index, spike = spikes[0]
    step = metrics[index].step
    detail = next((anomaly.detail for _, anomaly in run.anomalies(rank=rank)
                   if anomaly.kind == "spike" and anomaly.step == step), {})  # fmt: skip
    signals = _signals(metrics, index, detail)
    later = f"; it jumped {plural(len(spikes) - 1, 'more time')}" if len(spikes) > 1 else ""
    return [
        Finding(
            rule="loss-spike",
            severity=Severity.WARNING,
            confidence=0.9 if signals else 0.8,
            step=step,
            rank=rank,
            phase="forward",
            title=f"the loss jumped from {short(spike.median)} to {short(spike.loss)}",
            why=f"the {min(index, WINDOW)} losses before it stay below {short(spike.limit)}{later}"
            + "".join(f"\n{signal}." for signal in signals),
            fix="look at the batch of this step; clip gradients (clip_grad_norm_), lower or warm up the learning rate",
            evidence=({"loss": spike.loss, "median": spike.median, "limit": spike.limit, "steps": [
                metrics[place].step for place, _ in spikes]},),
        )
    ]  # fmt: skip


def _spikes(metrics: Iterable[Metrics]) -> Iterable[tuple[int, Spike]]:
    """Yield the place of each jump; losses of several optimizers are judged apart."""
    detectors: dict[str | None, SpikeDetector] = {}
    for place, metric in enumerate(metrics):
        if metric.loss is not None:
            spike = detectors.setdefault(metric.optimizer, SpikeDetector()).see(metric.loss)
            if spike is not None:
                yield place, spike


def _signals(metrics: list[Metrics], index: int, detail: object) -> list[str]:
    """Say what else stood out: the update before it, the gradients of the step, its inputs."""
    found = []
    before = metrics[max(0, index - WINDOW) : index]
    ratio = _times_median(metrics[index - 1].update_norm, [m.update_norm for m in before[:-1]])
    if ratio is not None:
        found.append(f"The update of the step before was {short(ratio)} times as large as usual")
    ratio = _times_median(metrics[index].grad_norm, [m.grad_norm for m in before])
    if ratio is not None:
        found.append(f"Its gradients are {short(ratio)} times as large as usual")
    if isinstance(detail, dict) and isinstance(detail.get("input_absmax_ratio"), float | int):
        times = float(detail["input_absmax_ratio"])
        if times > LEAST_RATIO:
            found.append(f"Its inputs reach {short(times)} times as far as usual: it is the batch")
    return found


def _times_median(value: float | None, others: list[float | None]) -> float | None:
    known = sorted(other for other in others if other is not None and math.isfinite(other))
    if value is None or len(known) < WARM_UP or known[len(known) // 2] <= 0:
        return None
    ratio = value / known[len(known) // 2]
    return ratio if ratio > _MANY_TIMES else None
