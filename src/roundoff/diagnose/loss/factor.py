"""The rule for losses that can fall for ever because a sign or a log is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose.loop_calls import first_rank_with, loop_steps
from roundoff.diagnose.wording import format_short
from roundoff.runs import Call, Event, Finding, Run, Severity
from roundoff.runs.records.step_ops import bare_name
from roundoff.words import plural

# == What reaches the criterion from the end of the graph: the factor that the loop put on its loss.

_CHAIN = ("input0", "output0")
"""The gradient that comes in and the one that goes out; other inputs of an op are saved values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradient:
    """The derivative of what backward started from with respect to the criterion's value."""

    factor: float
    """1 for a plain loss, 1/8 for one divided by eight, negative where the sign is flipped."""
    op: str
    """The first op of backward that is no scalar any more, such as aten.nll_loss_backward."""


def loss_gradient(events: Sequence[Event]) -> LossGradient | None:
    """Follow the scalars at the beginning of one microbatch's backward; None if it was not recorded."""
    factor = 1.0
    for event in events:
        if event.phase != "backward":
            continue
        if event.num_elements != 1 and event.output.startswith("output"):
            return LossGradient(factor=factor, op=event.op)
        if event.num_elements == 1 and event.output in _CHAIN and "float" in event.dtype:
            factor = event.min
    return None


def microbatches(run: Run, rank: int, step: int) -> list[list[Event]]:
    """Return the recorded events of a step, microbatch by microbatch, in the order in which they happened."""
    found: dict[int, list[Event]] = {}
    for event in run.iter_events(step=step, rank=rank):
        if event.phase in ("forward", "backward"):
            found.setdefault(event.microbatch, []).append(event)
    return [sorted(found[number], key=lambda event: event.order) for number in sorted(found)]


# == The rule for accumulated gradients whose losses were not divided by their number.

_FEW = 3
"""Fewer losses than this may be parts of one, as those of a discriminator are, unless they have labels of classes."""
_UNDIVIDED = 0.99
_FACTOR_TOLERANCE = 1e-3


def undivided_losses(run: Run) -> list[Finding]:
    """Find steps that add up the gradients of several batches; several losses of one batch are wanted."""
    return first_rank_with(run, _undivided_of_rank)


def _undivided_of_rank(run: Run, rank: int) -> list[Finding]:
    for loop_step in loop_steps(run, rank)[:2]:
        if not loop_step.named("step") or any(map(_is_by_hand, loop_step.named("backward"))):
            continue
        parts = [part for part in microbatches(run, rank, loop_step.step) if any(e.phase == "backward" for e in part)]
        if len(parts) < 2 or not _are_batches(parts):
            continue
        scale = next((m.loss_scale for m in run.metrics(rank=rank) if m.step == loop_step.step), None) or 1.0
        factors = [found.factor / scale for part in parts if (found := loss_gradient(part)) is not None]
        is_undivided = len(factors) == len(parts) and all(factor >= _UNDIVIDED for factor in factors)
        if is_undivided and not _divides_gradients(run, rank, loop_step.step, len(parts)):
            return [_undivided_finding(loop_step.step, len(parts), factors[0], rank)]
    return []


def _is_by_hand(backward: Call) -> bool:
    """Say whether the loop asked for gradients by autograd.grad: it does with them as it likes."""
    return bool(backward.detail.get("returns_gradients")) and not backward.detail.get("is_part_of_forward")


def _divides_gradients(run: Run, rank: int, step: int, number: int) -> bool:
    """Say whether the loop divides the gradients themselves before the step."""
    before: dict[tuple[str, str | None], float] = {}
    for event in run.iter_events(step=step, rank=rank, phase="optimizer"):
        if bare_name(event.op).removeprefix("_foreach_") not in ("div", "mul") or event.parameter is None:
            continue
        key = (event.op_name, event.parameter)
        if event.output.startswith("input"):
            before.setdefault(key, event.l2)
        elif before.get(key) and abs(event.l2 * number / before[key] - 1) < _FACTOR_TOLERANCE:
            return True
    return False


def _are_batches(parts: Sequence[Sequence[Event]]) -> bool:
    """Say whether microbatches do the same with different inputs."""
    in_model = [[e for e in part if e.phase == "forward" and e.site != "<loop>"] for part in parts]
    ops = [[e.op_name for e in part if e.op.startswith("aten.")] for part in in_model]
    inputs = [[e.hash for e in part if e.op == "input" and e.num_elements > 1] for part in parts]
    firsts = {found[0] for found in inputs if found}
    is_repeated = len({len(found) for found in ops}) == 1 and len(firsts) == len(parts)
    return is_repeated and (len(parts) >= _FEW or all(map(_has_class_labels, parts)))


def _has_class_labels(part: Sequence[Event]) -> bool:
    """Say whether a microbatch has targets of several classes."""
    targets = [e for e in part if bare_name(e.op).startswith("nll_loss") and e.output == "input1" and "int" in e.dtype]
    return any(target.min != target.max for target in targets)


def _undivided_finding(step: int, number: int, factor: float, rank: int) -> Finding:
    return Finding(
        rule="accumulation-not-averaged",
        severity=Severity.WARNING,
        confidence=0.85,
        step=step,
        rank=rank,
        phase="backward",
        title=f"the gradients of {plural(number, 'batch', 'batches')} are added up, not averaged",
        why=f"step {step} goes backward from {plural(number, 'batch', 'batches')}, each with the factor "
        f"{format_short(factor)}: its gradient is {number} times the mean, so the right learning rate depends on "
        "their number",
        fix=f"divide each loss: (loss / {number}).backward()",
        evidence=({"num_backwards": number, "factor": factor},),
    )


# == The rule for losses that grow with the batch.

_SUM_TOLERANCE = 1e-3
_LEAST_LOSS = 1e-12
_NOT_DIVIDED = 1.5
"""The factor on the sum times the number of samples: 1 for a mean."""


def summed_losses(run: Run) -> list[Finding]:
    """Find a loss that is the sum of those of the two halves of its batch, where a mean would be their mean."""
    for probe in run.probes():
        loss, halves = probe.get("loss"), probe.get("halves")
        if probe.get("probe") != "half-batch" or not isinstance(loss, (int, float)) or not isinstance(halves, list):
            continue
        parts = [half for half in halves if isinstance(half, (int, float))]
        if len(parts) != 2 or abs(loss) < _LEAST_LOSS or abs(sum(parts) - loss) > _SUM_TOLERANCE * abs(loss):
            continue
        return [] if _is_divided(run) else [_summed_finding(loss, parts, probe.get("step"))]
    return []


def _is_divided(run: Run) -> bool:
    """Say whether the loop divides the sum by itself: by a number, which half of a batch does not halve."""
    parts = microbatches(run, 0, 0)
    factor = _uniform_gradient(parts[0]) if parts else None
    if factor is None:
        return False
    scale = next((metric.loss_scale for metric in run.metrics() if metric.step == 0), None) or 1.0
    sizes = [event.shape[0] for event in parts[0] if event.op == "input" and event.shape]
    return abs(factor) / scale * (sizes[0] if sizes else 2) < _NOT_DIVIDED


def _uniform_gradient(events: Sequence[Event]) -> float | None:
    """Return what backward begins with as long as it is one number, for the loss and then for each sample alike."""
    factor = None
    for event in events:
        if event.phase == "backward" and event.output == "output0":
            if event.min != event.max:
                return factor
            factor = event.min
    return None


def _summed_finding(loss: float, halves: list[float], step: object) -> Finding:
    return Finding(
        rule="loss-sum-reduction",
        severity=Severity.ERROR,
        confidence=0.95,
        step=0,
        rank=0,
        phase="forward",
        title="the loss is a sum over the batch",
        why=f"step {step} again with half of its batch gives {format_short(halves[0])} and with the other half "
        f"{format_short(halves[1])}, which add up to its loss {format_short(loss)}: loss, gradients and the right "
        "learning rate all "
        "grow with the batch size",
        fix='divide by the number of samples: reduction="mean", or loss / len(batch)',
        evidence=({"loss": loss, "halves": list(halves)},),
    )


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
    return first_rank_with(run, _unbounded_of_rank)


def _unbounded_of_rank(run: Run, rank: int) -> list[Finding]:
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
            why=f"{why}; it fell from {format_short(first)} to {format_short(last)} in {len(losses)} steps and "
            "has nowhere to stop",
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
            f"backward starts from {what} times {format_short(gradient.factor)}, so the training makes it as "
            "large as it can",
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
