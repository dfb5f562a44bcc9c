"""Jumps of the loss: because of a batch, because of the state of the training, or because of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from roundoff.diagnose import needs
from roundoff.diagnose.loss.spike_detector import MIN_RATIO, WARM_UP, WINDOW, Spike, SpikeDetector
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Metrics, Run, Severity, SpikeProbe
from roundoff.words import plural

_MIN_SAMPLES = 8
_MIN_SHARE = 0.5
"""A sample that accounts for this share of a jump is its cause."""
_MANY_TIMES = 10.0
_CLIP = "clip gradients (clip_grad_norm_)"
_FIX = f"check the batch of this step; {_CLIP}, lower or warm up the learning rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeCause:
    """What caused a jump, in words."""

    name: str
    why: str
    fix: str
    is_one_sample: bool = False
    """Whether a single sample of the batch makes the whole difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpikeTrials:
    """The losses of two batches in two states, as the spike probe measured them."""

    loss: float
    other_batch: float
    earlier_state: float
    batch_size: int | None
    worst_sample: int | None
    worst_loss: float | None

    def has_one_bad_sample(self, usual: float) -> bool:
        """Say whether one sample of a large batch accounts for most of the jump of its mean."""
        if self.batch_size is None or self.batch_size < _MIN_SAMPLES or self.worst_loss is None:
            return False
        return self.worst_loss - usual > _MIN_SHARE * self.batch_size * (self.loss - usual)


def find_cause(run: Run, step: int, spike: Spike) -> SpikeCause | None:
    """Return what caused the jump in a step, from replays with another batch and in another state; None without them.

    A bad batch is also bad in an earlier state. A bad state is bad with any batch.
    """
    trials = _read_spike_trials(run, step)
    if trials is None:
        return None
    this = f"this batch has a loss of {format_short(trials.earlier_state)} in the state before step {step - 1}"
    other = f"the previous batch has a loss of {format_short(trials.other_batch)} in the state of this step"
    update = f"check the update of step {step - 1}, its gradients and learning rate, and other changes to the weights"
    is_bad_batch, is_bad_state = (_is_high(loss, spike) for loss in (trials.earlier_state, trials.other_batch))
    if not _is_high(trials.loss, spike):
        return SpikeCause(
            name="the state, which was changed between the steps",
            why=f"Rebuilt from the steps before it, the same step has a loss of {format_short(trials.loss)}: "
            "something wrote into weights, buffers or optimizer state between the steps.",
            fix="look for code that changes weights between steps: a load, a re-initialization, a clamp, a copy",
        )
    if is_bad_batch and not is_bad_state and trials.has_one_bad_sample(spike.median):
        return SpikeCause(
            name="one sample",
            why=f"The cause is sample {trials.worst_sample} of the batch, whose own loss is "
            f"{format_short(trials.worst_loss or 0.0)}: {this} too, but {other}.",
            fix="check this sample: an outlier, a wrong label, or just a rare one",
            is_one_sample=True,
        )
    if is_bad_batch and not is_bad_state:
        return SpikeCause(
            name="its batch",
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


def _read_spike_trials(run: Run, step: int) -> _SpikeTrials | None:
    for probe in run.probes(SpikeProbe):
        loss, other_batch, earlier_state = probe.loss, probe.other_batch, probe.earlier_state
        if probe.step == step and loss is not None and other_batch is not None and earlier_state is not None:
            return _SpikeTrials(
                loss=loss,
                other_batch=other_batch,
                earlier_state=earlier_state,
                batch_size=probe.batch_size,
                worst_sample=probe.worst_sample,
                worst_loss=probe.worst_loss,
            )
    return None


def loss_spikes(run: Run) -> list[Finding]:
    """Find the first jump of the loss on each rank; a warning, because many trainings recover from one.

    If a single sample of the batch is the cause it is a note: many datasets have rare samples.
    """
    return [finding for rank in run.ranks for finding in _of_rank(run, rank)]


def _of_rank(run: Run, rank: int) -> list[Finding]:
    metrics = run.metrics(rank=rank)
    spikes = list(_spikes(metrics))
    if not spikes:
        return []
    index, spike = spikes[0]
    cause = find_cause(run, metrics[index].step, spike) if rank == 0 else None  # only rank 0 runs probes
    signals = [*_signals(metrics, index), *_describe_large_inputs(run, rank, metrics[index].step)]
    causes = [] if cause is None else [cause.why]
    later = f"; it jumped {plural(len(spikes) - 1, 'more time')}" if len(spikes) > 1 else ""
    return [
        Finding(
            rule="loss-spike",
            severity=Severity.NOTE if cause is not None and cause.is_one_sample else Severity.WARNING,
            confidence=0.95 if cause is not None else 0.9 if signals else 0.8,
            step=metrics[index].step,
            rank=rank,
            phase="forward",
            title=f"the loss jumped from {format_short(spike.median)} to {format_short(spike.loss)}"
            + ("" if cause is None else f" because of {cause.name}"),
            why="\n".join(
                [
                    f"the {min(index, WINDOW)} losses before it are below {format_short(spike.limit)}{later}",
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
    ]


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


RULES = (
    Rule(
        order=1220,
        checks="jumps of the loss",
        find=loss_spikes,
        needs=(needs.losses(WARM_UP + 1),),
        codes=(
            Code(
                name="loss-spike",
                means="The loss jumped far above the losses around it. Replays with another batch, and from an earlier "
                "state, show whether the batch, the state or both are to blame.",
                fix="For a batch: inspect its samples. For a state: lower the learning rate, clip gradients, or go "
                "back to an earlier checkpoint.",
                follows_from=(
                    Effect.BLOWS_UP,
                    Effect.NONFINITE,
                    "step-on-nonfinite-gradients",
                    "loss-nonfinite",
                    "input-scale",
                ),
            ),
        ),
    ),
)
