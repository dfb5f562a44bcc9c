"""The loss at the start and over the whole training: too high at first, exploded, rising or flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, error, note, on_first_rank, rule, warning
from roundoff.diagnose.step_flow import (
    PRODUCTS,
    Layer,
    finding_at,
    first_rank,
    forward_ops,
    layers_of,
    root_mean_square,
)
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.records.event import StepOp
from roundoff.runs.records.info import SIMULATORS
from roundoff.words import plural

_CRITERIA = ("cross_entropy", "CrossEntropyLoss")
_MIN_TIMES_GUESS, _MIN_ABOVE_GUESS = 2.0, 1.0
_LARGE_GAIN = 4.0
"""A head with torch's default initial values has 0.6; one of N(0, 1) has the square root of its inputs."""
_MANY_TIMES_GUESS = 5.0
_SAME_SIZE = 1e-4
_NUM_COMPARED = 10
_MIN_STEPS, _MIN_FLAT_STEPS = 30, 200
"""Shorter trainings are not judged; a flat loss takes longer to be sure of."""
_EXPLODED, _MIN_EXPLOSION = 100.0, 10.0
_RISEN = 1.3
_NUM_DEVIATIONS = 4.0
_DEVIATION_OF_MAD = 1.48
_DONE = 0.01
"""A loss below this cannot fall much further."""


_REGRESSIONS = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "MSELoss", "SmoothL1Loss", "HuberLoss"})


@rule(
    Code(
        name="initial-loss",
        means="The first loss is far above the loss of a random guess, because the weights of the output layer start "
        "too large. The first hundreds of steps only undo that.",
        fix="Initialize the output layer with a standard deviation of 1 / sqrt(inputs) or less.",
        follows_from=("exploding-activations", "input-scale"),
    ),
    order=450,
    checks="the first loss",
    needs=[
        needs.structure,
        needs.recorded_first_step,
        needs.some(
            lambda run: _num_classes(run) is not None,
            "the first loss is not a mean cross entropy",
        ),
    ],
)
def initial_losses(run: Run) -> Finding | None:
    """Find a cross entropy that starts far above ln C because of the weights of the output layer.

    An embedding that is the output layer too is judged mildly: its start values may be a choice. Cosines times a scale
    are as large as the scale makes them, whatever the weights.
    """
    num_classes = _num_classes(run)
    if num_classes is None or num_classes < 2 or any(c.limit_factor > 1 for c in run.criteria(rank=first_rank(run))):
        return None
    ops = forward_ops(run)
    losses = [op.outputs[0] for op in ops if op.bare in ("nll_loss_forward", "nll_loss2d_forward")]
    layers = layers_of(run, ops)
    if not losses or not layers:
        return None
    tied = _tied_head(run, ops)
    guess, loss, head = math.log(num_classes), losses[-1].mean, tied or layers[-1]
    gain = _gain(head)
    if loss < _MIN_TIMES_GUESS * guess + _MIN_ABOVE_GUESS or gain is None or gain < _LARGE_GAIN:
        return None
    is_tied = "" if tied is None else "; they are the embedding's, whose start values are meant for an input"
    found = finding_at(
        head,
        "initial-loss",
        confidence=0.9,
        title=f"the first loss is {format_short(loss)}, while guessing gives {format_short(guess)}",
        why=f"guessing among {num_classes} classes gives ln {num_classes} = {format_short(guess)}; the "
        f"logits of {head.site} have the size {format_short(root_mean_square(head.result))}, because its weights "
        f"(std {format_short(head.weight.std or 0.0)}) multiply the size of their input by "
        f"{format_short(gain)}{is_tied}",
        fix=f"initialize {head.weight.name} smaller: a standard deviation of 1 / sqrt(inputs) or less"
        + (", or 0" if tied is None else ", for example nn.init.normal_(embedding.weight, std=0.02)"),
        evidence=({"loss": loss, "ln_classes": guess, "gain": gain},),
    )
    if tied is None:
        return found
    return replace(found, severity=Severity.WARNING if loss > _MANY_TIMES_GUESS * guess else Severity.NOTE)


def _num_classes(run: Run) -> int | None:
    """Return among how many classes the first loss chooses, a mean cross entropy in the loop or inside the model."""
    rank = first_rank(run)
    for facts in run.inputs(rank=rank):
        if facts.step == 0 and facts.criterion in _CRITERIA and facts.num_classes is not None:
            return facts.num_classes if facts.criterion_settings.get("reduction", "mean") == "mean" else None
    calls = [call for call in run.criteria(rank=rank) if call.step == 0]
    if len(calls) != 1 or calls[0].function not in _CRITERIA or calls[0].settings.get("reduction", "mean") != "mean":
        return None
    return calls[0].input_shape[1] if len(calls[0].input_shape) > 1 else None


def _tied_head(run: Run, ops: Sequence[StepOp]) -> Layer | None:
    """Return the last product if its weight has the values of an embedding, which then is the output layer too."""
    look, products = run.structures(rank=first_rank(run))[0], [op for op in ops if op.bare in PRODUCTS]
    embeddings = {module.site for module in look.modules if "num_embeddings" in module.settings}
    if not products or not products[-1].outputs:
        return None
    sizes = {event.num_elements: root_mean_square(event) for event in products[-1].inputs}
    for weight in look.parameters:
        size = sizes.get(math.prod(weight.shape))
        if weight.site in embeddings and weight.site != products[-1].first.site and size is not None:
            start = math.hypot(weight.std or 0.0, weight.mean or 0.0)
            if math.isclose(size, start, rel_tol=_SAME_SIZE):
                return Layer(op=products[-1], weight=weight)
    return None


def _gain(head: Layer) -> float | None:
    """Return the factor by which the layer's weights enlarge a random input of size 1."""
    if head.weight.std is None:
        return None
    return head.weight.std * math.sqrt(math.prod(head.weight.shape[1:]))


@rule(
    Code(
        name="loss-exploded",
        means="The loss ended far above where it started, and no other rule explains it.",
        detected="The losses of the first steps are compared with those of the last steps.",
        fix="Lower the learning rate, clip gradients, and compare with a run that works: `roundoff compare`.",
        follows_from=(FaultEffect.ANY,),
    ),
    Code(
        name="loss-rising",
        means="The loss ended clearly above where it started, and no other rule explains it.",
        detected="The losses of the first steps are compared with those of the last steps and of the second half.",
        fix="Try a tenth of the learning rate; check whether the data or the targets change during training.",
        follows_from=(FaultEffect.ANY,),
    ),
    Code(
        name="loss-flat",
        means="The loss never fell below where it started, and no other rule explains it.",
        detected="The training is divided into ten parts: none of them is better than the start by more than the "
        "noise.",
        fix="Overfit a single batch first. If that works, check the data; if not, the model and the loss.",
        follows_from=(FaultEffect.ANY,),
    ),
    order=1610,
    checks="the course of the loss",
    needs=[needs.losses(_MIN_STEPS)],
)
@on_first_rank
def shapes_of_the_loss(run: Run, rank: int) -> Finding | None:
    """Find a loss that ended far above where it started, clearly above, or not below; the most severe of the three.

    Losses of several optimizers alternate, and losses below 0 have no natural level: neither is judged. In
    reinforcement learning the data changes with the policy, and only an explosion is wrong. Targets that a model
    computes move with it: a loss that does not fall is worth a note.
    """
    metrics = run.metrics(rank=rank)
    losses = [(m.step, m.loss) for m in metrics if m.loss is not None and math.isfinite(m.loss)]
    if len(losses) < _MIN_STEPS or len({m.optimizer for m in metrics if m.optimizer}) > 1:
        return None
    values = [loss for _, loss in losses]
    if min(values) < 0 or values[0] == 0:
        return None
    first, last = median(values[:_NUM_COMPARED]), median(values[-_NUM_COMPARED:])
    start = min(values[0], first)
    noise = _NUM_DEVIATIONS * max(_deviation(values[:_NUM_COMPARED]), _deviation(values[-_NUM_COMPARED:]))
    if last > _EXPLODED * start and last > start + _MIN_EXPLOSION:
        step = next(step for step, loss in losses if loss > 10 * start)
        return error(
            rule="loss-exploded",
            confidence=0.7,
            step=step,
            rank=rank,
            phase="forward",
            title=f"the loss exploded from {format_short(start)} to {format_short(last)}",
            why=f"it exceeded ten times its first value in step {step} and did not come back",
            fix="lower the learning rate, warm it up, clip gradients; check the updates before that step",
        )
    if SIMULATORS & set(run.info.packages):
        return None
    made = note if _has_moving_targets(run, rank) else warning
    if last > _RISEN * start and last > start + noise and median(values[len(values) // 2 :]) > _RISEN * start:
        step = next(step for step, loss in losses if loss > _RISEN * start)
        return made(
            rule="loss-rising",
            confidence=0.7,
            step=step,
            rank=rank,
            phase="forward",
            title=f"the loss rose from {format_short(start)} to {format_short(last)}",
            why=f"it was above its first values for most of the {plural(len(losses), 'step')}, first in step {step}",
            fix="lower the learning rate; check the sign of the loss and of the update",
        )
    if len(values) >= _MIN_FLAT_STEPS and _is_flat(values):
        return made(
            rule="loss-flat",
            confidence=0.7,
            step=losses[-1][0],
            rank=rank,
            phase="forward",
            title=f"the loss does not fall: {format_short(start)} at the start, {format_short(last)} at the end",
            why=f"no part of the {plural(len(losses), 'step')} was better than the start by more than the noise",
            fix="try to overfit one batch; if that works, check the data and the labels, otherwise the learning rate",
        )
    return None


def _has_moving_targets(run: Run, rank: int) -> bool:
    """Say whether a model computes the targets of a regression in most steps, without gradients, as in Q-learning."""
    if any(call.is_bootstrapped for call in run.criteria(rank=rank)):
        return True
    batches = [batch for batch in run.inputs(rank=rank)[:_NUM_COMPARED] if batch.criterion in _REGRESSIONS]
    return sum(batch.num_asked > 0 for batch in batches) * 2 > max(len(batches), 1)


def _is_flat(values: Sequence[float]) -> bool:
    """Say whether no tenth of the training was better than its start by more than the noise."""
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


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return _DEVIATION_OF_MAD * median(abs(value - middle) for value in values)
