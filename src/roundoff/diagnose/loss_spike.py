"""The rule for jumps of the loss, and what else stood out when it jumped."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roundoff.diagnose.numbers import plural, short
from roundoff.diagnose.spike import LEAST_RATIO, WARM_UP, WINDOW, Spike, SpikeDetector
from roundoff.diagnose.spike_sort import sort_of
from roundoff.runs import Finding, Metrics, Run, Severity

_MANY_TIMES = 10.0
_FIX = "look at the batch of this step; clip gradients (clip_grad_norm_), lower or warm up the learning rate"


def loss_spikes(run: Run) -> list[Finding]:
    """Find the first jump of the loss on each rank; a warning, since many a training recovers from one.

    Where a single sample of the batch is the reason it is a note: there are rare ones in many data sets.
    """
    return [finding for rank in run.ranks for finding in _of_rank(run, rank)]


def _of_rank(run: Run, rank: int) -> list[Finding]:
    metrics = run.metrics(rank=rank)
    spikes = list(_spikes(metrics))
    if not spikes:
        return []
    index, spike = spikes[0]
    sort = sort_of(run, metrics[index].step, spike) if rank == 0 else None  # probes are those of rank 0
    signals = [*_signals(metrics, index), *_inputs_that_reach_far(run, rank, metrics[index].step)]
    told = [] if sort is None else [sort.why]
    later = f"; it jumped {plural(len(spikes) - 1, 'more time')}" if len(spikes) > 1 else ""
    return [
        Finding(
            rule="loss-spike",
            severity=Severity.NOTE if sort is not None and sort.is_one_sample else Severity.WARNING,
            confidence=0.95 if sort is not None else 0.9 if signals else 0.8,
            step=metrics[index].step,
            rank=rank,
            phase="forward",
            title=f"the loss jumped from {short(spike.median)} to {short(spike.loss)}"
            + ("" if sort is None else f" because of {sort.cause}"),
            why="\n".join([
                f"the {min(index, WINDOW)} losses before it stay below {short(spike.limit)}{later}", *told, *signals,
            ]),
            fix=_FIX if sort is None else sort.fix,
            evidence=(
                {"loss": spike.loss, "median": spike.median, "limit": spike.limit},
                {"steps": [metrics[place].step for place, _ in spikes]},
            ),
        )
    ]  # fmt: skip


def _spikes(metrics: list[Metrics]) -> Iterator[tuple[int, Spike]]:
    """Yield the place of each jump; losses of several optimizers are judged apart."""
    detectors: dict[str | None, SpikeDetector] = {}
    for place, metric in enumerate(metrics):
        if metric.loss is not None:
            spike = detectors.setdefault(metric.optimizer, SpikeDetector()).see(metric.loss)
            if spike is not None:
                yield place, spike


def _signals(metrics: list[Metrics], index: int) -> list[str]:
    """Say whether the update before it or the gradients of the step stood out."""
    found = []
    before = metrics[max(0, index - WINDOW) : index]
    ratio = _times_median(metrics[index - 1].update_norm, [m.update_norm for m in before[:-1]])
    if ratio is not None:
        found.append(f"The update of the step before was {short(ratio)} times as large as usual.")
    ratio = _times_median(metrics[index].grad_norm, [m.grad_norm for m in before])
    if ratio is not None:
        found.append(f"Its gradients are {short(ratio)} times as large as usual.")
    return found


def _inputs_that_reach_far(run: Run, rank: int, step: int) -> list[str]:
    """Compare the inputs of the replayed step with those of the steps that were recorded."""
    if step not in run.replayed_steps:
        return []
    here = _input_reach(run.replay(step), rank, step)
    usual = [_input_reach(run, rank, other) for other in run.steps if other != step][:WINDOW]
    largest = max((reach for reach in usual if reach is not None), default=0.0)
    if here is None or not largest or here < LEAST_RATIO * largest:
        return []
    return [f"Its inputs reach {short(here)}, {short(here / largest)} times as far as elsewhere: look at the batch."]


def _input_reach(run: Run, rank: int, step: int) -> float | None:
    events = [e for e in run.iter_events(step=step, rank=rank, op="input") if "float" in e.dtype and e.num_elements]
    return max((event.absmax for event in events[:1]), default=None)


def _times_median(value: float | None, others: list[float | None]) -> float | None:
    known = sorted(other for other in others if other is not None and math.isfinite(other))
    if value is None or len(known) < WARM_UP // 2 or known[len(known) // 2] <= 0:
        return None
    ratio = value / known[len(known) // 2]
    return ratio if ratio > _MANY_TIMES else None
