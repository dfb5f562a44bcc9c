"""What became of the loss as a whole: it exploded, rose, or stayed where it was. Other rules know why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from roundoff.diagnose.layers import Layer, finding_at, first_rank, forward_ops, layers_of, root_mean_square
from roundoff.diagnose.loop_calls import first_rank_with
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity
from roundoff.words import plural

# == The rule for a first loss that is far above what guessing gives.

_CRITERIA = ("cross_entropy", "CrossEntropyLoss")
_TIMES = 2.0
_MORE = 1.0
_LARGE_GAIN = 4.0
"""A head with torch's own start values has 0.6; one of N(0, 1) has the root of its inputs."""


def initial_losses(run: Run) -> list[Finding]:
    """Find a cross entropy that starts far above ln C because of the head's weights."""
    facts = next((f for f in run.inputs(rank=first_rank(run)) if f.step == 0 and f.criterion in _CRITERIA), None)
    if facts is None or facts.num_classes is None or facts.num_classes < 2:
        return []
    ops = forward_ops(run)
    losses = [op.outputs[0] for op in ops if op.bare in ("nll_loss_forward", "nll_loss2d_forward")]
    layers = layers_of(run, ops)
    if not losses or not layers or facts.criterion_settings.get("reduction", "mean") != "mean":
        return []
    guess, loss, head = math.log(facts.num_classes), losses[-1].mean, layers[-1]
    gain = _gain(head)
    if loss < _TIMES * guess + _MORE or head.weight.tied_to is not None or gain is None or gain < _LARGE_GAIN:
        return []
    return [
        finding_at(
            head,
            "initial-loss",
            confidence=0.9,
            title=f"the first loss is {format_short(loss)}, where guessing gives {format_short(guess)}",
            why=f"guessing among {facts.num_classes} classes costs ln {facts.num_classes} = "
            f"{format_short(guess)}; the logits "
            f"of {head.site} are of size {format_short(root_mean_square(head.result))}, because its weights, of size "
            f"{format_short(head.weight.std or 0.0)}, multiply what comes in by {format_short(gain)}",
            fix=f"start {head.weight.name} smaller: a standard deviation of 1 / sqrt(inputs) or below, or 0",
            evidence=({"loss": loss, "ln_classes": guess, "gain": gain},),
        )
    ]


def _gain(head: Layer) -> float | None:
    """Return by how much the layer's weights make a random input of size 1 larger."""
    if head.weight.std is None:
        return None
    return head.weight.std * math.sqrt(math.prod(head.weight.shape[1:]))


SHAPE_CODES = ("loss-exploded", "loss-rising", "loss-flat")
_NUM_COMPARED = 10
_LEAST_STEPS, _LEAST_FLAT_STEPS = 30, 200
"""Shorter trainings have not had their chance; a flat loss takes longer to be sure of."""
_EXPLODED, _LEAST_EXPLOSION = 100.0, 10.0
_RISEN = 1.3
_NUM_DEVIATIONS = 4.0
_DEVIATION_OF_MAD = 1.48
_DONE = 0.01
"""A loss below this has nowhere to fall."""


def shapes_of_the_loss(run: Run) -> list[Finding]:
    """Find a loss that ended far above where it began, clearly above, or not below; the gravest of the three.

    Losses of several optimizers go up and down by turns, and losses below 0 have no natural level: neither is judged.
    """
    return first_rank_with(run, _of_rank)


def _of_rank(run: Run, rank: int) -> list[Finding]:
    metrics = run.metrics(rank=rank)
    losses = [(m.step, m.loss) for m in metrics if m.loss is not None and math.isfinite(m.loss)]
    if len(losses) < _LEAST_STEPS or len({m.optimizer for m in metrics if m.optimizer}) > 1:
        return []
    values = [loss for _, loss in losses]
    if min(values) < 0 or values[0] == 0:
        return []
    first, last = median(values[:_NUM_COMPARED]), median(values[-_NUM_COMPARED:])
    start = min(values[0], first)
    noise = _NUM_DEVIATIONS * max(_deviation(values[:_NUM_COMPARED]), _deviation(values[-_NUM_COMPARED:]))
    if last > _EXPLODED * start and last > start + _LEAST_EXPLOSION:
        return [_exploded(losses, start, last, rank)]
    if last > _RISEN * start and last > start + noise and median(values[len(values) // 2 :]) > _RISEN * start:
        return [_risen(losses, start, last, rank)]
    if len(values) >= _LEAST_FLAT_STEPS and _is_flat(values):
        return [_flat(losses, start, last, rank)]
    return []


def _is_flat(values: Sequence[float]) -> bool:
    """Say whether no tenth of the training was better than its beginning by more than the noise."""
    size = len(values) // 10
    levels = [math.fsum(values[place : place + size]) / size for place in range(0, size * 10, size)]
    begin = values[:size]
    noise = _NUM_DEVIATIONS * _deviation(begin)
    opening = math.fsum(values[:3]) / 3
    if min(levels) < _DONE:
        return False
    return min(levels) > levels[0] - max(noise / math.sqrt(size), 0.01 * levels[0]) and (
        min(levels) > opening - max(noise / math.sqrt(3), 0.01 * opening)
    )


def _exploded(losses: Sequence[tuple[int, float]], start: float, last: float, rank: int) -> Finding:
    step = next(step for step, loss in losses if loss > 10 * start)
    return _finding(
        "loss-exploded",
        Severity.ERROR,
        step,
        rank,
        f"the loss exploded from {format_short(start)} to {format_short(last)}",
        f"it passed ten times its first value in step {step} and did not come back",
        "lower the learning rate, warm it up, clip gradients; look at what the updates did before that step",
    )


def _risen(losses: Sequence[tuple[int, float]], start: float, last: float, rank: int) -> Finding:
    step = next(step for step, loss in losses if loss > _RISEN * start)
    return _finding(
        "loss-rising",
        Severity.WARNING,
        step,
        rank,
        f"the loss rose from {format_short(start)} to {format_short(last)}",
        f"it has been above its first values for most of {plural(len(losses), 'step')}, first in step {step}",
        "lower the learning rate; check the sign of the loss and of the update",
    )


def _flat(losses: Sequence[tuple[int, float]], start: float, last: float, rank: int) -> Finding:
    return _finding(
        "loss-flat",
        Severity.WARNING,
        losses[-1][0],
        rank,
        f"the loss does not fall: {format_short(start)} at first, {format_short(last)} at the end",
        f"no part of the {plural(len(losses), 'step')} was better than the beginning by more than the noise",
        "see whether one batch can be learnt by heart; if so look at the data and labels, else at the learning rate",
    )


def _finding(
    rule: str, severity: Severity, step: int, rank: int, title: str, why: str, fix: str
) -> Finding:  # fmt: skip
    return Finding(
        rule=rule,
        severity=severity,
        confidence=0.7,
        step=step,
        rank=rank,
        phase="forward",
        title=title,
        why=why,
        fix=fix,
    )


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return _DEVIATION_OF_MAD * median(abs(value - middle) for value in values)
