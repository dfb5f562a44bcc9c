"""Jumps of the loss: when a loss counts as one, and whether the batch, the state or both caused it."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, on_each_rank, rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import EpochDetail, Finding, Metrics, Run, Severity, SpikeProbe
from roundoff.words import plural

WINDOW = 50
"""The number of losses before a step by which it is judged."""
WARM_UP = 20
"""The number of losses that must be known before one can stand out."""
NUM_DEVIATIONS = 10.0
NUM_LOG_DEVIATIONS = 8.0
_DEVIATION_OF_MAD = 1.48
"""Converts a median absolute deviation into a standard deviation, for normal noise."""
MIN_RATIO = 2.0
MIN_JUMP = 0.5
_LATEST, _MIN_PART = 5, 0.25
"""So much of the way from the median must lie between the highest of the latest losses and this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss that is far above those before it."""

    loss: float
    median: float
    """Of the losses before it."""
    limit: float
    """The value it exceeded."""


class SpikeDetector:
    """Says of each loss whether it jumped; a few microseconds a step.

    A jump is above the median of the last losses by ten deviations, by as much as the median itself, and by 0.5. If
    losses vary by orders of magnitude, it must also be an outlier among their logarithms. Losses that are not finite
    are ignored here. A loss that jumped still enters the window, so a new level is reported once.
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
        least = median + max(MIN_JUMP, (MIN_RATIO - 1) * abs(median))
        if loss <= least:
            return None  # nearly always, and cheap
        limit = max(median + NUM_DEVIATIONS * _deviation(known, median), known[-1])
        if known[0] > 0:
            magnitudes = [math.log(value) for value in known]
            middle = math.log(median)
            limit = max(limit, math.exp(min(700.0, middle + NUM_LOG_DEVIATIONS * _deviation(magnitudes, middle))))
        limit = max(limit, least)
        latest = max(itertools.islice(reversed(self._window), _LATEST))
        if loss - latest < _MIN_PART * (loss - median):
            return None  # the losses rise slowly
        return Spike(loss=loss, median=median, limit=limit) if loss > limit else None


def _deviation(values: Sequence[float], median: float) -> float:
    """Estimate the standard deviation from the median absolute deviation, which is robust against outliers."""
    distances = sorted(abs(value - median) for value in values)
    return _DEVIATION_OF_MAD * distances[len(distances) // 2]


_MIN_SAMPLES = 8
_MIN_SHARE = 0.5
"""A sample that accounts for this share of a jump is its cause."""
_MANY_TIMES = 10.0
_NUM_AFTER = 8
_BATCH = "its batch"
_FAITHFUL = 1e-2
_CLIP = "clip gradients (clip_grad_norm_)"
_FIX = f"check the batch of this step; {_CLIP}, lower or warm up the learning rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeCause:
    """What caused a jump, in words."""

    name: str
    why: str
    fix: str
    is_note: bool = False
    """Whether this is common in healthy trainings."""


def find_cause(run: Run, step: int, spike: Spike) -> SpikeCause | None:
    """Return what caused the jump in a step, from replays with another batch and in another state; None without them.

    A bad batch is also bad in an earlier state. A bad state is bad with any batch.
    """
    probe = next((probe for probe in run.probes(SpikeProbe) if probe.step == step), None)
    if probe is None or probe.loss is None or probe.other_batch is None or probe.earlier_state is None:
        return None
    loss = probe.loss
    this = f"this batch has a loss of {format_short(probe.earlier_state)} in the state before step {step - 1}"
    other = f"the previous batch has a loss of {format_short(probe.other_batch)} in the state of this step"
    update = f"check the update of step {step - 1}, its gradients and learning rate, and other changes to the weights"
    is_bad_batch, is_bad_state = (_is_high(each, spike) for each in (probe.earlier_state, probe.other_batch))
    if probe.changed_attributes and probe.with_changed is not None and _is_high(probe.with_changed, spike):
        return SpikeCause(
            name="an attribute that the script changed",
            why=f"Played again with the attributes of the steps before it, the step has a loss of "
            f"{format_short(loss)}; with those of this step it has {format_short(probe.with_changed)}: "
            f"{'; '.join(probe.changed_attributes)}.",
            fix=f"check where the script sets {probe.changed_attributes[0].partition(' was ')[0]}",
        )
    if not _is_faithful(probe):
        return SpikeCause(
            name="something that only the script knows",
            why=f"Played again now, step {step - 1} has a loss of {format_short(probe.previous or 0.0)} instead of "
            f"{format_short(probe.previous_in_training or 0.0)}, in the same state and with the same batch: a flag, "
            f"an attribute or another variable that the model or the loss uses was changed in step {step}.",
            fix=f"look for what the script sets differently in step {step}: a flag, a factor, a mode of the model",
        )
    if not _is_high(loss, spike):
        return SpikeCause(
            name="the state, which was changed between the steps",
            why=f"Rebuilt from the steps before it, the same step has a loss of {format_short(loss)}: "
            "something wrote into weights, buffers or optimizer state between the steps, or the step used a variable "
            "of the script that has its old value again.",
            fix="look for code that changes weights between steps: a load, a re-initialization, a clamp, a copy",
        )
    if is_bad_batch and not is_bad_state and _has_one_bad_sample(probe, loss, spike.median):
        return SpikeCause(
            name="one sample",
            why=f"The cause is sample {probe.worst_sample} of the batch, whose own loss is "
            f"{format_short(probe.worst_loss or 0.0)}: {this} too, but {other}.",
            fix="check this sample: an outlier, a wrong label, or just a rare one",
            is_note=True,
        )
    if is_bad_batch and not is_bad_state:
        return SpikeCause(
            name=_BATCH,
            why=f"The cause is the batch: {this} too, but {other}.",
            fix=f"check the batch of this step: its labels, outliers, an empty or damaged sample; and {_CLIP}, so that "
            "one batch cannot do much harm",
        )
    if is_bad_state and not is_bad_batch:
        return SpikeCause(
            name="the state before it",
            why=f"The cause is the state of the training: {other} too, but {this}.",
            fix=f"{update}; {_CLIP}, lower or warm up the learning rate",
        )
    if is_bad_batch:
        return SpikeCause(
            name="its batch and the state before it",
            why=f"Batch and state are both bad: {this}, and {other}.",
            fix=f"check the batch of this step; and {update}; {_CLIP}",
        )
    return SpikeCause(
        name="this batch in this state",
        why=f"Only this batch in this state is bad: {this}, and {other}.",
        fix=f"{_CLIP}, lower or warm up the learning rate: the training is close to instability",
    )


def _is_high(loss: float, spike: Spike) -> bool:
    return not loss <= spike.limit  # also true for NaN


def _is_faithful(probe: SpikeProbe) -> bool:
    """Say whether the previous step comes out as it did; a few roundings may differ, as in compiled code."""
    if probe.previous is None or probe.previous_in_training is None:
        return True
    return math.isclose(probe.previous, probe.previous_in_training, rel_tol=_FAITHFUL)


def _has_one_bad_sample(probe: SpikeProbe, loss: float, usual: float) -> bool:
    """Say whether one sample of a large batch accounts for most of the jump of its mean."""
    if probe.batch_size is None or probe.batch_size < _MIN_SAMPLES or probe.worst_loss is None:
        return False
    return probe.worst_loss - usual > _MIN_SHARE * probe.batch_size * (loss - usual)


@rule(
    Code(
        name="loss-spike",
        means="The loss jumped far above the losses around it. Replays with another batch, and from an earlier state, "
        "show whether the batch, the state or both are to blame.",
        fix="For a batch: inspect its samples. For a state: lower the learning rate, clip gradients, or go back to an "
        "earlier checkpoint.",
        follows_from=(
            "classes-in-order",
            FaultEffect.BLOWS_UP,
            FaultEffect.NONFINITE,
            "step-on-nonfinite-gradients",
            "loss-nonfinite",
            "input-scale",
        ),
    ),
    order=1220,
    checks="jumps of the loss",
    needs=[needs.losses(WARM_UP + 1)],
)
@on_each_rank
def loss_spikes(run: Run, rank: int) -> Finding | None:
    """Find the first jump of the loss on each rank; a warning, because many trainings recover from one.

    If a single sample of the batch is the cause it is a note: many datasets have rare samples. So are jumps where other
    data begins, as in a curriculum.
    """
    metrics = run.metrics(rank=rank)
    spikes = list(_spikes(metrics))
    if not spikes:
        return None
    index, spike = spikes[0]
    cause = find_cause(run, metrics[index].step, spike) if rank == 0 else None  # only rank 0 runs probes
    cause = _new_data(run, rank, metrics[index:], spike, cause) or cause
    signals = [*_signals(metrics, index), *_describe_large_inputs(run, rank, metrics[index].step)]
    causes = [] if cause is None else [cause.why]
    mine = [metric.loss for metric in metrics[:index] if metric.optimizer == metrics[index].optimizer]
    before = [loss for loss in mine if loss is not None and math.isfinite(loss)][-WINDOW:]
    later = f"; it jumped {plural(len(spikes) - 1, 'more time')}" if len(spikes) > 1 else ""
    return Finding(
        rule="loss-spike",
        severity=Severity.NOTE if cause is not None and cause.is_note else Severity.WARNING,
        confidence=0.95 if cause is not None else 0.9 if signals else 0.8,
        step=metrics[index].step,
        rank=rank,
        phase="forward",
        title=f"the loss jumped from {format_short(spike.median)} to {format_short(spike.loss)}"
        + ("" if cause is None else f" because of {cause.name}"),
        why="\n".join(
            [
                f"the highest of the {len(before)} losses before it is {format_short(max(before))}{later}",
                *causes,
                *signals,
            ]
        ),
        fix=_FIX if cause is None else cause.fix,
        evidence=(
            {"loss": spike.loss, "median": spike.median, "limit": spike.limit},
            {"steps": [metrics[place].step for place, _ in spikes]},
        ),
    )


def _new_data(
    run: Run, rank: int, metrics: Sequence[Metrics], spike: Spike, cause: SpikeCause | None
) -> SpikeCause | None:
    """Return that other data begins with the jump; None if nothing says so.

    Either a DataLoader that was not used before begins there, or the cause is the batch and its samples have another
    shape, or those after it are as bad.
    """
    if cause is not None and cause.name != _BATCH:
        return None
    step = metrics[0].step
    began = _loaders_of_training(run, rank)
    earlier = {loader for at, loader in began if at < step - 1}
    is_new_loader = any(at in (step - 1, step) and loader not in earlier for at, loader in began) and bool(earlier)
    after = [metric.loss for metric in metrics[1 : _NUM_AFTER + 1] if metric.loss is not None]
    num_high = sum(_is_high(loss, spike) for loss in after)
    is_lasting = cause is not None and len(after) == _NUM_AFTER and 2 * num_high > _NUM_AFTER
    probe = next((probe for probe in run.probes(SpikeProbe) if probe.step == step), None)
    changed = () if probe is None or cause is None else probe.changed_shapes
    if not is_new_loader and not changed and not is_lasting:
        return None
    if is_new_loader:
        seen = "a DataLoader that was not used before begins here"
    elif changed:
        seen = f"the shape of its samples changes from {changed[0]}"
    else:
        high = f"{num_high} of the next {_NUM_AFTER} losses are as high"
        seen = f"this batch is as bad in the state before step {step - 1}, and {high}"
    return SpikeCause(
        name="data that is new to the model",
        why=f"Other data begins with this step: {seen}.",
        fix="nothing, if the data is meant to change here, as in a curriculum or for a new task; otherwise check what "
        "the loader returns from this step on",
        is_note=True,
    )


def _loaders_of_training(run: Run, rank: int) -> list[tuple[int, int | None]]:
    """Return (step, loader) of the passes that began while models were in training mode."""
    found, is_training = [], True
    for call in run.calls(rank=rank):
        if call.call in ("train", "eval"):
            is_training = call.call == "train"
        elif call.call == "epoch" and is_training:
            found.append((call.step, call.detail_as(EpochDetail).loader))
    return found


def _spikes(metrics: list[Metrics]) -> Iterator[tuple[int, Spike]]:
    """Yield the index of each jump; losses of several optimizers are judged separately."""
    detectors: dict[str | None, SpikeDetector] = {}
    for place, metric in enumerate(metrics):
        if metric.loss is not None:
            spike = detectors.setdefault(metric.optimizer, SpikeDetector()).see(metric.loss)
            if spike is not None:
                yield place, spike


def _signals(metrics: list[Metrics], index: int) -> list[str]:
    """Return what stands out: the update before the jump, or the gradients of the step."""
    found = []
    before = metrics[max(0, index - WINDOW) : index]
    ratio = _times_median(metrics[index - 1].update_norm, [m.update_norm for m in before[:-1]])
    if ratio is not None:
        found.append(f"The update of the step before was {format_short(ratio)} times as large as usual.")
    ratio = _times_median(metrics[index].grad_norm, [m.grad_norm for m in before])
    if ratio is not None:
        found.append(f"Its gradients are {format_short(ratio)} times as large as usual.")
    return found


def _describe_large_inputs(run: Run, rank: int, step: int) -> list[str]:
    """Compare the inputs of the replayed step with those of the recorded steps."""
    if step not in run.replayed_steps:
        return []
    here = _input_reach(run.replay(step), rank, step)
    usual = [_input_reach(run, rank, other) for other in run.steps if other != step][:WINDOW]
    largest = max((reach for reach in usual if reach is not None), default=0.0)
    if here is None or not largest or here < MIN_RATIO * largest:
        return []
    return [
        f"Its inputs reach {format_short(here)}, {format_short(here / largest)} times as much as elsewhere: check the "
        "batch."
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
