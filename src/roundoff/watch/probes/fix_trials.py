"""Tries the fixes of findings: the last steps are played again and again, as they are and with the fix.

A finding is a hypothesis until its fix was seen to help. What each fix did becomes the proof of its finding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.wording import format_short
from roundoff.replay.player import OutOfTime
from roundoff.replay.snapshots import ReplayPath
from roundoff.replay.state import Training
from roundoff.replay.what_if import (
    UNCHANGED,
    Change,
    clear_gradients,
    drawn_weights,
    gradients_times,
    logits_to_criterion,
    play_repeatedly,
    rate_of,
    rate_times,
    scaled_loss,
    step_after_backward,
    targets_of_same_shape,
    unscale_before_clipping,
    update_others,
    without_decay,
)
from roundoff.runs import Metrics, Run, RunWriter, Severity, WhatIfProbe

_NUM_STEPS = 24
"""A fix is followed for this many steps: those that were taped, again and again."""
_MAX_TAPES = 12
_MAX_FIXES = 3
_LEARNED = 0.05
"""Where only this share of the first loss is left, a fix cannot show that it helps."""
_MIN_GAIN = 0.05
"""A fix has helped if the loss falls by this share of itself more than it does without."""
_SCALE = 2.0**12

MakeFixes = Callable[[Training, Sequence[Metrics]], Sequence[Change]]


def _higher_rates(training: Training, metrics: Sequence[Metrics]) -> Sequence[Change]:
    return [rate_times(factor) for factor in (1e2, 1e4, 1e6)]


def _peak_rate(training: Training, metrics: Sequence[Metrics]) -> Sequence[Change]:
    """Return the highest rate of the training, or that which the optimizer was made with."""
    made_with = [optimizer.defaults.get("lr") for optimizer in training.optimizers]
    rates = [float(rate) for rate in (*(row.lr for row in metrics), *made_with) if rate]
    return [rate_of(max(rates))] if rates else []


def _unscale_gradients(training: Training, metrics: Sequence[Metrics]) -> Sequence[Change]:
    scales = [row.loss_scale for row in metrics if row.loss_scale]
    return [gradients_times(1 / scale, text="gradients unscaled before every step") for scale in scales[-1:]]


FIXES: Mapping[str, MakeFixes] = {
    **dict.fromkeys(("lr-too-high", "loss-rising", "loss-exploded"), lambda *_: [rate_times(0.1)]),
    "lr-too-low": _higher_rates,
    **dict.fromkeys(("lr-zero", "scheduler-rate"), _peak_rate),
    **dict.fromkeys(("missing-zero-grad", "zero-grad-before-step"), lambda training, _: [clear_gradients(training)]),
    "missing-step": lambda training, _: [step_after_backward(training)],
    "step-on-scaled-gradients": _unscale_gradients,
    "clip-before-unscale": lambda *_: [unscale_before_clipping()],
    "norm-weight-decay": lambda *_: [without_decay()],
    "gradient-underflow": lambda *_: [scaled_loss(_SCALE)],
    **dict.fromkeys(("not-in-optimizer", "stale-optimizer-parameters"), lambda training, _: [update_others(training)]),
    **dict.fromkeys(("double-softmax", "loss-input-kind"), lambda *_: [logits_to_criterion()]),
    "loss-broadcast": lambda *_: [targets_of_same_shape()],
    **dict.fromkeys(("zero-init", "symmetric-init"), lambda training, _: [drawn_weights(training)]),
}
"""What the fix of a finding changes in a replay, by the finding's rule; of several, the first that helps counts."""


def try_fixes(writer: RunWriter, training: Training, paths: Sequence[ReplayPath], *, until: float) -> None:
    """Diagnose what was written of a run so far, try the fixes of its first findings, and write what they did.

    Args:
        writer: of the run.
        training: whose models and optimizers run.
        paths: steps to try a fix on, one after the other until it helps.
        until: the time, as `time.monotonic` says it, after which nothing is played.
    """
    run = Run.open(writer.folder)
    rules = [found.rule for found in diagnose_run(run).findings if found.severity is not Severity.NOTE]
    rules = [rule for rule in dict.fromkeys(rules) if rule in FIXES][:_MAX_FIXES]
    metrics = run.metrics() if rules else []
    scales = {row.step: row.loss_scale for row in metrics if row.loss_scale}
    first_loss = next((abs(row.loss) for row in metrics if row.loss is not None), 0.0)
    replays = [
        _Replay(training, path, scale=scales.get(path[0].step, 1.0), min_loss=_LEARNED * first_loss, until=until)
        for path in paths
    ]
    for rule in rules:
        try:
            for found in _try_until_good(rule, FIXES[rule](training, metrics), replays):
                writer.write(found)
        except OutOfTime:
            return


def _try_until_good(rule: str, fixes: Sequence[Change], replays: Sequence[_Replay]) -> list[WhatIfProbe]:
    """Return the first trial that helped, or else those on the last of the steps that can be played."""
    in_vain: list[WhatIfProbe] = []
    for replay in replays:
        tried = [found for fix in fixes if (found := replay.try_fix(rule, fix)) is not None]
        helped = [found for found in tried if found.is_good]
        if helped:
            return helped[:1]
        in_vain = tried or in_vain
    return in_vain


class _Replay:
    """Some steps that can be played again and again; how their loss goes unchanged is found out once."""

    def __init__(self, training: Training, path: ReplayPath, *, scale: float, min_loss: float, until: float) -> None:
        self._training, self._scale, self._min_loss, self._until = training, scale, min_loss, until
        self._path = (path[0], path[1][:_MAX_TAPES])

    @functools.cached_property
    def _losses_unchanged(self) -> list[float]:
        return self._play(UNCHANGED)

    def try_fix(self, rule: str, fix: Change) -> WhatIfProbe | None:
        """Play the steps with a fix; None if they cannot show whether it helps, or do not accept it."""
        before = self._losses_unchanged
        if len(before) < 2 or not self._min_loss <= abs(before[0]) < math.inf:
            return None
        after = self._play(fix)
        if not after:
            return None
        steps = self._path[1]
        num_steps = max(len(after) - 1, 1) * len(steps)
        effect = (
            f"the loss of one batch goes from {_shown(after[0])} to {_shown(after[-1])} in {num_steps} steps, "
            f"and from {_shown(before[0])} to {_shown(before[-1])} unchanged,"
        )
        return WhatIfProbe(
            step=steps[-1].step,
            first_step=steps[0].step,
            rule=rule,
            change=fix.name,
            text=fix.text,
            effect=effect,
            is_good=_fall(after) > _fall(before) + _MIN_GAIN,
            is_spike=False,
            losses=tuple(loss if math.isfinite(loss) else None for loss in after),
        )

    def _play(self, change: Change) -> list[float]:
        try:
            found = play_repeatedly(self._training, self._path, change, num_steps=_NUM_STEPS, until=self._until)
        except OutOfTime:
            raise
        except Exception:
            return []  # the script has dropped what the steps need, or its code does not accept what was changed
        return [loss / self._scale for loss in found]


def _shown(loss: float) -> str:
    return format_short(loss) if math.isfinite(loss) else "a number that is not finite"


def _fall(losses: Sequence[float]) -> float:
    """Return by which share of itself the loss has fallen."""
    first, last = losses[0], losses[-1]
    return (first - last) / max(abs(first), 1e-12) if math.isfinite(first) and math.isfinite(last) else -math.inf
