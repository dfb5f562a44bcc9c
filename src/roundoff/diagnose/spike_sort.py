"""Which sort of jump a loss made: because of its batch, of the state of the training, or of both together."""

from __future__ import annotations

from dataclasses import dataclass

from roundoff.diagnose.numbers import short
from roundoff.diagnose.spike import Spike
from roundoff.runs import Run

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
class _Played:
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
    played = _played(run, step)
    if played is None:
        return None
    this = f"this batch has a loss of {short(played.earlier_state)} in the state before step {step - 1}"
    other = f"the batch of the step before has a loss of {short(played.other_batch)} in the state of this step"
    update = (
        f"look at the update of step {step - 1}, its gradients and its learning rate, or what else changed weights then"
    )
    is_bad_batch, is_bad_state = (_is_high(loss, spike) for loss in (played.earlier_state, played.other_batch))
    if not _is_high(played.loss, spike):
        return SpikeSort(
            cause="the state, changed outside of the steps",
            why=f"Rebuilt from the steps before it the same step has a loss of {short(played.loss)}: "
            "something wrote into weights, buffers or optimizer state between the steps.",
            fix="look for code that changes weights between steps: a load, a re-initialisation, a clamp, a copy",
        )
    if is_bad_batch and not is_bad_state and played.has_one_bad_sample(spike.median):
        return SpikeSort(
            cause="one sample",
            why=f"It is sample {played.worst_sample} of the batch, with a loss of {short(played.worst_loss or 0.0)} by "
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


def _played(run: Run, step: int) -> _Played | None:
    for probe in run.probes():
        losses = [probe.get(name) for name in ("loss", "other_batch", "earlier_state")]
        known = [float(loss) for loss in losses if isinstance(loss, (int, float))]
        if probe.get("probe") == "spike" and probe.get("step") == step and len(known) == len(losses):
            size, sample, worst = (probe.get(name) for name in ("batch_size", "worst_sample", "worst_loss"))
            return _Played(
                loss=known[0],
                other_batch=known[1],
                earlier_state=known[2],
                batch_size=size if isinstance(size, int) else None,
                worst_sample=sample if isinstance(sample, int) else None,
                worst_loss=float(worst) if isinstance(worst, (int, float)) else None,
            )
    return None
