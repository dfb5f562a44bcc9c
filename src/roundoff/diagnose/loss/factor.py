"""Losses with a wrong factor: a sum instead of a mean, undivided accumulation, a flipped sign or a missing log."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import loop_steps
from roundoff.diagnose.rule import Code, FaultEffect, FindingText, error, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import BackwardDetail, Call, Event, Finding, HalfBatchProbe, HalvedTerm, Run
from roundoff.runs.files.plain_json import object_of
from roundoff.runs.records.event import bare_name
from roundoff.words import plural

_CHAIN = ("input0", "output0")
"""The gradient that comes in and the one that goes out; other inputs of an op are saved values."""


def loss_gradient(events: Sequence[Event]) -> float | None:
    """Return the derivative of what backward started from with respect to the criterion's value.

    It is 1 for a plain loss, 1/8 for one divided by eight, negative if the sign is flipped; None if the backward of
    this microbatch was not recorded.
    """
    factor = 1.0
    for event in events:
        if event.phase != "backward":
            continue
        if event.num_elements != 1 and event.output.startswith("output"):
            return factor
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


@rule(
    Code(
        name="accumulation-not-averaged",
        means="The gradients of several batches are added but not averaged, so the right learning rate depends on "
        "their number.",
        fix="Divide each loss by the number of batches in a step.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    order=720,
    checks="accumulated gradients",
    needs=[
        needs.some(
            lambda run: any(len(each.calls_of("backward")) > 1 for rank in run.ranks for each in loop_steps(run, rank)),
            "every step has one backward",
        ),
        needs.recorded_first_step,
    ],
)
@on_first_rank
def undivided_losses(run: Run, rank: int) -> Finding | None:
    """Find steps that sum the gradients of several batches; several losses of one batch are fine."""
    for loop_step in loop_steps(run, rank)[:2]:
        if not loop_step.calls_of("step") or any(map(_is_by_hand, loop_step.calls_of("backward"))):
            continue
        parts = [part for part in microbatches(run, rank, loop_step.step) if any(e.phase == "backward" for e in part)]
        if len(parts) < 2 or not _are_batches(parts):
            continue
        metrics = next((m for m in run.metrics(rank=rank) if m.step == loop_step.step), None)
        if metrics is not None and metrics.loss is None:
            continue  # a stage of a pipeline starts from gradients that it is sent, which may be divided already
        scale = (metrics and metrics.loss_scale) or 1.0
        factors = [found / scale for part in parts if (found := loss_gradient(part)) is not None]
        is_undivided = len(factors) == len(parts) and all(factor >= _UNDIVIDED for factor in factors)
        if is_undivided and not _divides_gradients(run, rank, loop_step.step, len(parts)):
            return _undivided_finding(loop_step.step, len(parts), factors[0], rank)
    return None


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
    """Say whether microbatches run the same ops of the same model on different inputs."""
    in_model = [[e for e in part if e.phase == "forward" and e.site != "<loop>"] for part in parts]
    if len({frozenset(e.site for e in found) for found in in_model}) > 1:
        return False  # copies of a model, each with its own batch
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
    return warning(
        rule="accumulation-not-averaged",
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


@rule(
    Code(
        name="loss-sum-reduction",
        means="The loss is a sum over the batch: the loss, the gradients and the right learning rate depend on the "
        "batch size.",
        fix='Use `reduction="mean"`, or divide by the number of samples.',
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    order=710,
    checks="losses summed over the batch",
    needs=[needs.probe(HalfBatchProbe)],
)
def summed_losses(run: Run) -> Finding | None:
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
        return None if _is_divided(run) else _summed_finding(loss, parts, probe.step)
    return None


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
    return error(
        rule="loss-sum-reduction",
        confidence=0.95,
        step=0,
        rank=0,
        phase="forward",
        title="the loss is a sum over the batch",
        why=f"step {step} replayed with each half of its batch gives {format_short(halves[0])} and "
        f"{format_short(halves[1])}, which add up to its loss {format_short(loss)}: the loss, the gradients and the "
        "right learning rate all depend on the batch size",
        fix='divide by the number of samples: reduction="mean", or loss / len(batch)',
        evidence=({"loss": loss, "halves": list(halves), "step": step},),
    )


_HALVES, _STAYS = 0.02, 0.25
"""How far a term may be from the sum of its halves, and from their mean, which noise moves."""
_CONSTANT = 1e-6


@rule(
    Code(
        name="mixed-reductions",
        means="One term of the loss is a mean over the batch and another a sum: the sum outweighs the mean by the "
        "number of samples, and the more, the larger the batch. In a variational autoencoder the codes then carry "
        "nothing.",
        fix="Reduce all terms alike: sum each over its features and take the mean over the batch, or divide the sum "
        "by the number of samples.",
    ),
    order=705,
    checks="terms of the loss that are reduced differently",
    needs=[
        needs.probe(HalfBatchProbe),
        needs.some(lambda run: any(p.terms for p in run.probes(HalfBatchProbe)), "the loss is no sum of terms"),
    ],
)
def mixed_reductions(run: Run) -> Finding | None:
    """Find a loss of which one term is the sum of the terms of both halves of the batch, and another their mean."""
    for probe in run.probes(HalfBatchProbe):
        varying = [term for term in probe.terms if _depends_on_batch(term)]
        sums = [term for term in varying if _is_sum(term) and term.factor * (probe.size or 1) > _NOT_DIVIDED]
        means = [term for term in varying if _is_mean(term)]
        if sums and means:
            return _mixed_finding(sums[0], means[0], probe)
    return None


def _depends_on_batch(term: HalvedTerm) -> bool:
    return abs(term.value) > _MIN_LOSS and any(abs(x - term.value) > _CONSTANT * abs(term.value) for x in term.halves)


def _is_sum(term: HalvedTerm) -> bool:
    return abs(sum(term.halves) - term.value) <= _HALVES * abs(term.value)


def _is_mean(term: HalvedTerm) -> bool:
    return abs(sum(term.halves) / len(term.halves) - term.value) <= _STAYS * abs(term.value)


def _mixed_finding(summed: HalvedTerm, mean: HalvedTerm, probe: HalfBatchProbe) -> Finding:
    texts = [f"{format_short(x.halves[0])} and {format_short(x.halves[1])}" for x in (summed, mean)]
    lines = [f" ({x.source})" if x.source else "" for x in (summed, mean)]
    return warning(
        rule="mixed-reductions",
        confidence=0.9,
        step=0,
        rank=0,
        phase="forward",
        source=summed.source,
        title="one term of the loss is a sum over the batch, another a mean",
        why=f"step {probe.step} replayed with each half of its batch gives {texts[0]} for one term{lines[0]}, which "
        f"add up to its {format_short(summed.value)}, and {texts[1]} for another{lines[1]}, whose mean is its "
        f"{format_short(mean.value)}: the sum weighs {probe.size} times as much as its mean would, and more in a "
        "larger batch",
        fix="reduce both alike: sum over the features and take the mean over the batch, or divide the sum by the "
        "number of samples",
        evidence=(object_of(summed), object_of(mean), {"step": probe.step, "num_samples": probe.size}),
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
_SELECTED = ("gather", "index", "_log_softmax")
"""Ops that select log-probabilities."""


@rule(
    Code(
        name="loss-unbounded-below",
        means="The loss falls below the minimum of its criterion: a sign is flipped, or a log is missing.",
        fix="Check the sign of the loss and what the criterion expects: log-probabilities, logits, targets.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    order=730,
    checks="losses without a lower bound",
    needs=[needs.losses(2 * _NUM_COMPARED), needs.recorded_first_step],
)
@on_first_rank
def unbounded_losses(run: Run, rank: int) -> Finding | None:
    """Find a loss that keeps falling below the minimum of its criterion.

    A critic's loss, a density's likelihood or two adversarial optimizers naturally have no bound.
    """
    metrics = run.metrics(rank=rank)
    losses = [
        (metric.step, metric.loss) for metric in metrics if metric.loss is not None and metric.loss == metric.loss
    ]
    if len({metric.optimizer for metric in metrics if metric.optimizer}) > 1 or not _falls(losses):
        return None
    parts = microbatches(run, rank, 0)
    cause = _find_cause(run, rank, parts[0]) if parts else None
    if cause is None:
        return None
    below = next(step for step, loss in losses if loss < 0)
    first, last = losses[0][1], losses[-1][1]
    return error(
        rule="loss-unbounded-below",
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


def _falls(losses: Sequence[tuple[int, float]]) -> bool:
    """Say whether the loss is below 0 and still falling at the end."""
    values = [loss for _, loss in losses]
    if len(values) < 2 * _NUM_COMPARED or values[-1] >= 0:
        return False
    middle = len(values) // 2
    first, then, last = values[0], median(values[middle : middle + _NUM_COMPARED]), median(values[-_NUM_COMPARED:])
    return last < then < first and first - last > max(_MIN_FALL, abs(first))


def _find_cause(run: Run, rank: int, events: Sequence[Event]) -> FindingText | None:
    """Return why the loss has no bound; None if that may be its nature."""
    factor = loss_gradient(events)
    if factor is None:
        return None
    criterion = next((facts.criterion for facts in run.inputs(rank=rank)[:1]), None)
    given = _read_by(events, "nll_loss_forward", "nll_loss2d_forward")
    reduced, maker = _last_reduced(events) or (None, "")
    is_bounded = criterion in _NEVER_NEGATIVE or maker in _SIZES or any(event.max <= 0 for event in given)
    if factor < 0 and is_bounded:
        what = criterion if criterion in _NEVER_NEGATIVE else "a loss that is never negative"
        return FindingText(
            title="the sign of the loss is flipped",
            why=f"backward starts from {what} times {format_short(factor)}, so the training maximizes it",
            fix="minimize the loss itself: remove the minus sign, or the optimizer's maximize=True",
        )
    if factor > 0 and any(event.min < 0 < event.max for event in given):
        return FindingText(
            title="nll_loss gets scores instead of log-probabilities",
            why="nll_loss expects log-probabilities, which are never above 0, but these values are",
            fix="use cross_entropy, or log_softmax before nll_loss",
        )
    if (
        factor > 0
        and reduced is not None
        and reduced.max <= 0
        and maker in _SELECTED
        and _read_by(events, "_log_softmax")
    ):
        return FindingText(
            title="the loss lacks its minus sign",
            why="backward starts from the mean of log-probabilities, so the training makes the right answers "
            "improbable",
            fix="minimize the negative: loss = -log_probabilities.mean()",
        )
    return None


def _read_by(events: Sequence[Event], *names: str) -> list[Event]:
    """Return the first inputs of the forward ops with these bare names."""
    return [e for e in events if e.phase == "forward" and e.output == "input0" and bare_name(e.op) in names]


def _last_reduced(events: Sequence[Event]) -> tuple[Event, str] | None:
    """Return what the last mean or sum is over, and the op that computed it; None without one."""
    reduced = _read_by(events, "mean", "sum")
    if not reduced:
        return None
    last = max(reduced, key=lambda event: event.order)
    made = {e.hash: bare_name(e.op) for e in events if e.phase == "forward" and e.output == "output0"}
    return last, made.get(last.hash, "")
