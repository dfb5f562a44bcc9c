"""Losses with a wrong factor: a sum instead of a mean, undivided accumulation, a flipped sign or a missing log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop_calls import first_rank_with, loop_steps
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import BackwardDetail, Call, Event, Finding, HalfBatchProbe, Run, Severity
from roundoff.runs.records.step_ops import bare_name
from roundoff.words import plural

_CHAIN = ("input0", "output0")
"""The gradient that comes in and the one that goes out; other inputs of an op are saved values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradient:
    """The derivative of what backward started from with respect to the criterion's value."""

    factor: float
    """1 for a plain loss, 1/8 for one divided by eight, negative if the sign is flipped."""
    op: str
    """The first op of backward whose result is not a scalar, such as aten.nll_loss_backward."""


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
    """Return the recorded events of a step by microbatch, in the order in which they happened."""
    found: dict[int, list[Event]] = {}
    for event in run.iter_events(step=step, rank=rank):
        if event.phase in ("forward", "backward"):
            found.setdefault(event.microbatch, []).append(event)
    return [sorted(found[number], key=lambda event: event.order) for number in sorted(found)]


_MIN_BATCHES = 3
"""Fewer losses may be parts of one, like those of a discriminator, unless they have class labels."""
_UNDIVIDED = 0.99
_FACTOR_TOLERANCE = 1e-3


def undivided_losses(run: Run) -> list[Finding]:
    """Find steps that sum the gradients of several batches; several losses of one batch are fine."""
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
    """Say whether the loop called autograd.grad: then it may do anything with the gradients."""
    return (
        bool(backward.detail_as(BackwardDetail).returns_gradients)
        and not backward.detail_as(BackwardDetail).is_part_of_forward
    )


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
    """Say whether microbatches run the same ops on different inputs."""
    in_model = [[e for e in part if e.phase == "forward" and e.site != "<loop>"] for part in parts]
    ops = [[e.op_name for e in part if e.op.startswith("aten.")] for part in in_model]
    inputs = [[e.hash for e in part if e.op == "input" and e.num_elements > 1] for part in parts]
    firsts = {found[0] for found in inputs if found}
    is_repeated = len({len(found) for found in ops}) == 1 and len(firsts) == len(parts)
    return is_repeated and (len(parts) >= _MIN_BATCHES or all(map(_has_class_labels, parts)))


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
        title=f"the gradients of {plural(number, 'batch', 'batches')} are summed, not averaged",
        why=f"step {step} runs backward for {plural(number, 'batch', 'batches')}, each with the factor "
        f"{format_short(factor)}: its gradient is {number} times the mean, so the right learning rate depends on their "
        "number",
        fix=f"divide each loss: (loss / {number}).backward()",
        evidence=({"num_backwards": number, "factor": factor},),
    )


_SUM_TOLERANCE = 1e-3
_MIN_LOSS = 1e-12
_NOT_DIVIDED = 1.5
"""The factor on the sum times the number of samples: 1 for a mean."""


def summed_losses(run: Run) -> list[Finding]:
    """Find a loss that is the sum of the losses of the two halves of its batch, not their mean."""
    for probe in run.probes(HalfBatchProbe):
        loss, parts = probe.loss, [half for half in probe.halves if half is not None]
        if (
            loss is None
            or len(parts) != 2
            or abs(loss) < _MIN_LOSS
            or abs(sum(parts) - loss) > _SUM_TOLERANCE * abs(loss)
        ):
            continue
        return [] if _is_divided(run) else [_summed_finding(loss, parts, probe.step)]
    return []


def _is_divided(run: Run) -> bool:
    """Say whether the loop itself divides the sum by a constant, which stays the same for half a batch."""
    parts = microbatches(run, 0, 0)
    factor = _uniform_gradient(parts[0]) if parts else None
    if factor is None:
        return False
    scale = next((metric.loss_scale for metric in run.metrics() if metric.step == 0), None) or 1.0
    sizes = [event.shape[0] for event in parts[0] if event.op == "input" and event.shape]
    return abs(factor) / scale * (sizes[0] if sizes else 2) < _NOT_DIVIDED


def _uniform_gradient(events: Sequence[Event]) -> float | None:
    """Return the gradient at the start of backward while it is one number: for the loss, then for each sample."""
    factor = None
    for event in events:
        if event.phase == "backward" and event.output == "output0":
            if event.min != event.max:
                return factor
            factor = event.min
    return None


def _summed_finding(loss: float, halves: list[float], step: int) -> Finding:
    return Finding(
        rule="loss-sum-reduction",
        severity=Severity.ERROR,
        confidence=0.95,
        step=0,
        rank=0,
        phase="forward",
        title="the loss is a sum over the batch",
        why=f"step {step} replayed with each half of its batch gives {format_short(halves[0])} and "
        f"{format_short(halves[1])}, which add up to its loss {format_short(loss)}: the loss, the gradients and the "
        "right learning rate all depend on the batch size",
        fix='divide by the number of samples: reduction="mean", or loss / len(batch)',
        evidence=({"loss": loss, "halves": list(halves)},),
    )


_NUM_COMPARED = 10
_MIN_FALL = 1.0
_NEVER_NEGATIVE = {
    "cross_entropy", "CrossEntropyLoss", "mse_loss", "MSELoss", "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss",
    "huber_loss", "HuberLoss", "binary_cross_entropy", "BCELoss", "binary_cross_entropy_with_logits",
    "BCEWithLogitsLoss", "kl_div", "KLDivLoss", "ctc_loss", "CTCLoss", "hinge_embedding_loss", "triplet_margin_loss",
}  # fmt: skip
_SIZES = ("pow", "abs", "square")
"""Ops whose results are never negative; a hand-written loss takes the mean of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnboundedCause:
    """Why a loss has no lower bound, in words."""

    title: str
    why: str
    fix: str


def unbounded_losses(run: Run) -> list[Finding]:
    """Find a loss that keeps falling below the minimum of its criterion.

    A critic's loss, a density's likelihood or two adversarial optimizers naturally have no bound.
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
    cause = _find_cause(run, rank, parts[0]) if parts else None
    if cause is None:
        return []
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
            title=cause.title,
            why=f"{cause.why}; it fell from {format_short(first)} to {format_short(last)} in {len(losses)} steps and "
            "has no lower bound",
            fix=cause.fix,
            evidence=({"first": first, "last": last},),
        )
    ]


def _falls(losses: Sequence[tuple[int, float]]) -> bool:
    """Say whether the loss is below 0 and still falling at the end."""
    values = [loss for _, loss in losses]
    if len(values) < 2 * _NUM_COMPARED or values[-1] >= 0:
        return False
    middle = len(values) // 2
    first, then, last = values[0], median(values[middle : middle + _NUM_COMPARED]), median(values[-_NUM_COMPARED:])
    return last < then < first and first - last > max(_MIN_FALL, abs(first))


def _find_cause(run: Run, rank: int, events: Sequence[Event]) -> _UnboundedCause | None:
    """Return why the loss has no bound; None if that may be its nature."""
    gradient = loss_gradient(events)
    if gradient is None:
        return None
    criterion = next((facts.criterion for facts in run.inputs(rank=rank)[:1]), None)
    is_bounded = criterion in _NEVER_NEGATIVE or _is_mean_of_sizes(events) or _takes_log_probabilities(events)
    if gradient.factor < 0 and is_bounded:
        what = criterion if criterion in _NEVER_NEGATIVE else "a loss that is never negative"
        return _UnboundedCause(
            title="the sign of the loss is flipped",
            why=f"backward starts from {what} times {format_short(gradient.factor)}, so the training maximizes it",
            fix="minimize the loss itself: remove the minus sign, or the optimizer's maximize=True",
        )
    if gradient.factor > 0 and _lacks_the_log(events):
        return _UnboundedCause(
            title="nll_loss gets scores instead of log-probabilities",
            why="nll_loss expects log-probabilities, which are never above 0, but these values are",
            fix="use cross_entropy, or log_softmax before nll_loss",
        )
    if gradient.factor > 0 and _is_mean_of_log_probabilities(events):
        return _UnboundedCause(
            title="the loss lacks its minus sign",
            why="backward starts from the mean of log-probabilities, so the training makes the right answers "
            "improbable",
            fix="minimize the negative: loss = -log_probabilities.mean()",
        )
    return None


def _forward(events: Sequence[Event], bare: str, output: str) -> list[Event]:
    return [e for e in events if e.phase == "forward" and bare_name(e.op) == bare and e.output == output]


def _takes_log_probabilities(events: Sequence[Event]) -> bool:
    given = [*_forward(events, "nll_loss_forward", "input0"), *_forward(events, "nll_loss2d_forward", "input0")]
    return any(event.max <= 0 for event in given)


def _lacks_the_log(events: Sequence[Event]) -> bool:
    given = [*_forward(events, "nll_loss_forward", "input0"), *_forward(events, "nll_loss2d_forward", "input0")]
    return any(event.min < 0 < event.max for event in given)


def _is_mean_of_sizes(events: Sequence[Event]) -> bool:
    """Say whether the last mean or sum is over squares or magnitudes."""
    made = {e.hash: bare_name(e.op) for e in events if e.phase == "forward" and e.output == "output0"}
    means = [*_forward(events, "mean", "input0"), *_forward(events, "sum", "input0")]
    return bool(means) and made.get(max(means, key=lambda event: event.order).hash) in _SIZES


def _is_mean_of_log_probabilities(events: Sequence[Event]) -> bool:
    """Say whether the last mean or sum is over values selected from a log_softmax."""
    means = [*_forward(events, "mean", "input0"), *_forward(events, "sum", "input0")]
    if not means or not _forward(events, "_log_softmax", "output0"):
        return False
    last = max(means, key=lambda event: event.order)
    made = {e.hash: bare_name(e.op) for e in events if e.phase == "forward" and e.output == "output0"}
    return last.max <= 0 and made.get(last.hash) in ("gather", "index", "_log_softmax")


def _accumulation(run: Run) -> str | None:
    steps = [loop_step for rank in run.ranks for loop_step in loop_steps(run, rank)]
    has_several = any(len(loop_step.named("backward")) > 1 for loop_step in steps)
    return None if has_several else "every step has one backward"


RULES = (
    Rule(
        order=710,
        checks="losses summed over the batch",
        find=summed_losses,
        needs=(needs.probe(HalfBatchProbe),),
        codes=(
            Code(
                name="loss-sum-reduction",
                means="The loss is a sum over the batch: the loss, the gradients and the right learning rate depend on "
                "the batch size.",
                fix='Use `reduction="mean"`, or divide by the number of samples.',
                leads_to=(Effect.BLOWS_UP,),
            ),
        ),
    ),
    Rule(
        order=720,
        checks="accumulated gradients",
        find=undivided_losses,
        needs=(_accumulation, needs.recorded_first_step),
        codes=(
            Code(
                name="accumulation-not-averaged",
                means="The gradients of several batches are added but not averaged, so the right learning rate depends "
                "on their number.",
                fix="Divide each loss by the number of batches in a step.",
            ),
        ),
    ),
    Rule(
        order=730,
        checks="losses without a lower bound",
        find=unbounded_losses,
        needs=(needs.losses(2 * _NUM_COMPARED), needs.recorded_first_step),
        codes=(
            Code(
                name="loss-unbounded-below",
                means="The loss falls below the minimum of its criterion: a sign is flipped, or a log is missing.",
                fix="Check the sign of the loss and what the criterion expects: log-probabilities, logits, targets.",
                leads_to=(Effect.BLOWS_UP,),
            ),
        ),
    ),
)
