"""The rule for losses that can fall for ever because a sign or a log is missing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from roundoff.diagnose.loop_calls import told_once
from roundoff.diagnose.loss_gradient import loss_gradient, microbatches
from roundoff.diagnose.numbers import short
from roundoff.runs import Event, Finding, Run, Severity
from roundoff.runs.step_ops import bare_name

_NUM_COMPARED = 10
_LEAST_FALL = 1.0
_NEVER_NEGATIVE = {
    "cross_entropy", "CrossEntropyLoss", "mse_loss", "MSELoss", "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss",
    "huber_loss", "HuberLoss", "binary_cross_entropy", "BCELoss", "binary_cross_entropy_with_logits",
    "BCEWithLogitsLoss", "kl_div", "KLDivLoss", "ctc_loss", "CTCLoss", "hinge_embedding_loss", "triplet_margin_loss",
}  # fmt: skip
_SIZES = ("pow", "abs", "square")
"""Ops whose results are never negative, as a loss by hand takes the mean of them."""


def unbounded_losses(run: Run) -> list[Finding]:
    """Find a loss that falls and falls below what its criterion can reach.

    A critic's loss, a density's likelihood or two optimizers that play against each other have no bound by nature.
    """
    return told_once(run, _of_rank)


def _of_rank(run: Run, rank: int) -> list[Finding]:
    metrics = run.metrics(rank=rank)
    losses = [
        (metric.step, metric.loss) for metric in metrics if metric.loss is not None and metric.loss == metric.loss
    ]
    if len({metric.optimizer for metric in metrics if metric.optimizer}) > 1 or not _falls(losses):
        return []
    parts = microbatches(run, rank, 0)
    cause = _cause(run, rank, parts[0]) if parts else None
    if cause is None:
        return []
    title, why, fix = cause
    below = next(step for step, loss in losses if loss < 0)
    first, last = losses[0][1], losses[-1][1]
    return [
        Finding(
            rule="loss-unbounded-below",
            severity=Severity.ERROR,
            confidence=0.95,
            step=below,
            rank=rank,
            phase="forward",
            title=title,
            why=f"{why}; it fell from {short(first)} to {short(last)} in {len(losses)} steps and has nowhere to stop",
            fix=fix,
            evidence=({"first": first, "last": last},),
        )
    ]


def _falls(losses: Sequence[tuple[int, float]]) -> bool:
    """Say whether the loss is below 0 and still on its way down at the end."""
    values = [loss for _, loss in losses]
    if len(values) < 2 * _NUM_COMPARED or values[-1] >= 0:
        return False
    middle = len(values) // 2
    first, then, last = values[0], median(values[middle : middle + _NUM_COMPARED]), median(values[-_NUM_COMPARED:])
    return last < then < first and first - last > max(_LEAST_FALL, abs(first))


def _cause(run: Run, rank: int, events: Sequence[Event]) -> tuple[str, str, str] | None:
    """Return title, why and fix; None where the loss may have no bound by nature."""
    gradient = loss_gradient(events)
    if gradient is None:
        return None
    criterion = next((facts.criterion for facts in run.inputs(rank=rank)[:1]), None)
    is_bounded = criterion in _NEVER_NEGATIVE or _is_mean_of_sizes(events) or _takes_log_probabilities(events)
    if gradient.factor < 0 and is_bounded:
        what = criterion if criterion in _NEVER_NEGATIVE else "a loss that is never negative"
        return (
            "the sign of the loss is flipped",
            f"backward starts from {what} times {short(gradient.factor)}, so the training makes it as large as it can",
            "minimise the loss itself: leave out the minus, or the optimizer's maximize=True",
        )
    if gradient.factor > 0 and _misses_the_log(events):
        return (
            "nll_loss is given scores instead of log-probabilities",
            "nll_loss takes logarithms of probabilities, which are never above 0, and these are",
            "use cross_entropy, or log_softmax before nll_loss",
        )
    if gradient.factor > 0 and _is_mean_of_log_probabilities(events):
        return (
            "the loss misses its minus",
            "backward starts from the mean of logarithms of probabilities, so the training makes the right answers as "
            "improbable as it can",
            "minimise the negative: loss = -log_probabilities.mean()",
        )
    return None


def _forward(events: Sequence[Event], bare: str, output: str) -> list[Event]:
    return [e for e in events if e.phase == "forward" and bare_name(e.op) == bare and e.output == output]


def _takes_log_probabilities(events: Sequence[Event]) -> bool:
    given = [*_forward(events, "nll_loss_forward", "input0"), *_forward(events, "nll_loss2d_forward", "input0")]
    return any(event.max <= 0 for event in given)


def _misses_the_log(events: Sequence[Event]) -> bool:
    given = [*_forward(events, "nll_loss_forward", "input0"), *_forward(events, "nll_loss2d_forward", "input0")]
    return any(event.min < 0 < event.max for event in given)


def _is_mean_of_sizes(events: Sequence[Event]) -> bool:
    """Say whether the last mean or sum is of squares or magnitudes."""
    made = {e.hash: bare_name(e.op) for e in events if e.phase == "forward" and e.output == "output0"}
    means = [*_forward(events, "mean", "input0"), *_forward(events, "sum", "input0")]
    return bool(means) and made.get(max(means, key=lambda event: event.order).hash) in _SIZES


def _is_mean_of_log_probabilities(events: Sequence[Event]) -> bool:
    """Say whether the last mean or sum is of values picked from a log_softmax."""
    means = [*_forward(events, "mean", "input0"), *_forward(events, "sum", "input0")]
    if not means or not _forward(events, "_log_softmax", "output0"):
        return False
    last = max(means, key=lambda event: event.order)
    made = {e.hash: bare_name(e.op) for e in events if e.phase == "forward" and e.output == "output0"}
    return last.max <= 0 and made.get(last.hash) in ("gather", "index", "_log_softmax")
