"""The rule for jumps of the loss, and what else stood out when it jumped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from roundoff.diagnose.loss.spike_detector import MIN_RATIO, WARM_UP, WINDOW, Spike, SpikeDetector
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Metrics, Run, Severity
from roundoff.words import plural

# == Which sort of jump a loss made: because of its batch, of the state of the training, or of both together.

_LEAST_SAMPLES = 8
_MOST = 0.5
"""A sample that makes up so much of a jump is its reason."""
_CLIP = "clip gradients (clip_grad_norm_)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeSort:
    """What a jump is due to, in words."""

    cause: str
    why: str
    fix: str
    is_one_sample: bool = False
    """Whether a single sample of the batch makes the whole difference: rare ones do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpikeTrials:
    """What the probe measured: the losses of two batches in two states."""

    loss: float
    other_batch: float
    earlier_state: float
    batch_size: int | None
    worst_sample: int | None
    worst_loss: float | None

    def has_one_bad_sample(self, usual: float) -> bool:
        """Say whether one sample of a batch of many makes up most of the jump of its mean."""
        if self.batch_size is None or self.batch_size < _LEAST_SAMPLES or self.worst_loss is None:
            return False
        return self.worst_loss - usual > _MOST * self.batch_size * (self.loss - usual)


def sort_of(run: Run, step: int, spike: Spike) -> SpikeSort | None:
    """Say what the jump in a step is due to, from replays with another batch and in another state; None without them.

    A batch that is bad is bad in an earlier state, too. A state that is spoilt shows it with any batch.
    """
    played = _read_spike_trials(run, step)
    if played is None:
        return None
    this = f"this batch has a loss of {format_short(played.earlier_state)} in the state before step {step - 1}"
    other = f"the batch of the step before has a loss of {format_short(played.other_batch)} in the state of this step"
    update = (
        f"look at the update of step {step - 1}, its gradients and its learning rate, or what else changed weights then"
    )
    is_bad_batch, is_bad_state = (_is_high(loss, spike) for loss in (played.earlier_state, played.other_batch))
    if not _is_high(played.loss, spike):
        return SpikeSort(
            cause="the state, changed outside of the steps",
            why=f"Rebuilt from the steps before it the same step has a loss of {format_short(played.loss)}: "
            "something wrote into weights, buffers or optimizer state between the steps.",
            fix="look for code that changes weights between steps: a load, a re-initialisation, a clamp, a copy",
        )
    if is_bad_batch and not is_bad_state and played.has_one_bad_sample(spike.median):
        return SpikeSort(
            cause="one sample",
            why=f"It is sample {played.worst_sample} of the batch, with a loss of "
            f"{format_short(played.worst_loss or 0.0)} by "
            f"itself: {this}, too, and {other}.",
            fix="look at this sample: an outlier, a wrong label, or just one of a rare kind",
            is_one_sample=True,
        )
    if is_bad_batch and not is_bad_state:
        return SpikeSort(
            cause="its batch",
            why=f"It is the batch: {this}, too, and {other}.",
            fix=f"look at the batch of this step: its labels, outliers, an empty or damaged sample; and {_CLIP}, so "
            "that one batch cannot do much harm",
        )
    if is_bad_state and not is_bad_batch:
        return SpikeSort(
            cause="the state before it",
            why=f"It is the state of the training: {other}, too, and {this}.",
            fix=f"{update}; {_CLIP}, lower or warm up the learning rate",
        )
    if is_bad_batch:
        return SpikeSort(
            cause="its batch, and of the state before it",
            why=f"Batch and state are bad, each by itself: {this}, and {other}.",
            fix=f"look at the batch of this step; and {update}; {_CLIP}",
        )
    return SpikeSort(
        cause="this batch in this state",
        why=f"It takes both, this batch and this state: {this}, and {other}.",
        fix=f"{_CLIP}, lower or warm up the learning rate: the training is at the edge of what it can bear",
    )


def _is_high(loss: float, spike: Spike) -> bool:
    return not loss <= spike.limit  # NaN, too


def _read_spike_trials(run: Run, step: int) -> _SpikeTrials | None:
    for probe in run.probes():
        losses = [probe.get(name) for name in ("loss", "other_batch", "earlier_state")]
        known = [float(loss) for loss in losses if isinstance(loss, (int, float))]
        if probe.get("probe") == "spike" and probe.get("step") == step and len(known) == len(losses):
            size, sample, worst = (probe.get(name) for name in ("batch_size", "worst_sample", "worst_loss"))
            return _SpikeTrials(
                loss=known[0],
                other_batch=known[1],
                earlier_state=known[2],
                batch_size=size if isinstance(size, int) else None,
                worst_sample=sample if isinstance(sample, int) else None,
                worst_loss=float(worst) if isinstance(worst, (int, float)) else None,
            )
    return None


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
            title=f"the loss jumped from {format_short(spike.median)} to {format_short(spike.loss)}"
            + ("" if sort is None else f" because of {sort.cause}"),
            why="\n".join([
                f"the {min(index, WINDOW)} losses before it stay below {format_short(spike.limit)}{later}",
                *told, *signals,
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
        found.append(f"The update of the step before was {format_short(ratio)} times as large as usual.")
    ratio = _times_median(metrics[index].grad_norm, [m.grad_norm for m in before])
    if ratio is not None:
        found.append(f"Its gradients are {format_short(ratio)} times as large as usual.")
    return found


def _inputs_that_reach_far(run: Run, rank: int, step: int) -> list[str]:
    """Compare the inputs of the replayed step with those of the steps that were recorded."""
    if step not in run.replayed_steps:
        return []
    here = _input_reach(run.replay(step), rank, step)
    usual = [_input_reach(run, rank, other) for other in run.steps if other != step][:WINDOW]
    largest = max((reach for reach in usual if reach is not None), default=0.0)
    if here is None or not largest or here < MIN_RATIO * largest:
        return []
    return [
        f"Its inputs reach {format_short(here)}, {format_short(here / largest)} times as far as elsewhere: look "
        "at the batch."
    ]


def _input_reach(run: Run, rank: int, step: int) -> float | None:
    events = [e for e in run.iter_events(step=step, rank=rank, op="input") if "float" in e.dtype and e.num_elements]
    return max((event.absmax for event in events[:1]), default=None)


def _times_median(value: float | None, others: list[float | None]) -> float | None:
    known = sorted(other for other in others if other is not None and math.isfinite(other))
    if value is None or len(known) < WARM_UP // 2 or known[len(known) // 2] <= 0:
        return None
    ratio = value / known[len(known) // 2]
    return ratio if ratio > _MANY_TIMES else None
