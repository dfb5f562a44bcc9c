"""What loss functions are fed with: shapes that broadcast, probabilities for logarithms, targets at the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import CriterionCall, Finding, Run
from roundoff.words import plural

_MATCH = 0.99
"""The share of targets that must be the token at an offset."""
_NO_MATCH = 0.9
_MIN_PADDING = 0.1
"""The share of padding among the targets that matters."""
_ABOVE_ONE = 0.05
"""A logarithm that rounding does not explain: the probability would be above 1."""
_SIGNED = ("cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss")
"""Losses whose targets are 1 and -1."""
_UNEVEN = 1.25
"""By how much the numbers of counted targets of two microbatches must differ to matter."""

_ELEMENTWISE = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "poisson_nll_loss", "kl_div",
    "soft_margin_loss", "sub", "mul",
})  # fmt: skip
_seen_criteria = needs.some(
    lambda run: any(run.criteria(rank=rank) for rank in run.ranks), "no loss function was seen in a replayed step"
)


@rule(
    Code(
        name="loss-broadcast",
        means="Prediction and target have different shapes, and the loss stretches both: it compares every prediction "
        "with the targets of all samples, and the model learns their mean.",
        fix="Give both the same shape: `model(x).squeeze(1)`, or `target.unsqueeze(1)`.",
    ),
    order=402,
    checks="predictions and targets that are broadcast against each other",
    needs=[_seen_criteria],
)
@on_first_rank
def broadcast_losses(run: Run, rank: int) -> Finding | None:
    """Find an elementwise loss whose result has more elements than its prediction and its target."""
    for call in run.criteria(rank=rank):
        together = _broadcast(call.input_shape, call.target_shape)
        if call.function not in _ELEMENTWISE or together in (call.input_shape, call.target_shape):
            continue
        if call.settings.get("reduction") == "none" and len(together) > 2:
            continue  # what is then chosen among all pairs, such as the nearest, was meant to be compared
        many = len(call.input_shape) > len(call.target_shape)
        fix = "drop the last dimension of the prediction, .squeeze(-1)" if many else "give the prediction the shape of "
        fix += (
            ", or add it to the target, .unsqueeze(-1)" if many else "the target, .unsqueeze(-1), or squeeze the target"
        )
        return error(
            rule="loss-broadcast",
            confidence=0.97,
            step=call.step,
            rank=rank,
            phase="forward",
            source=call.source,
            title="the loss compares every prediction with the targets of other samples",
            why=f"{_operation(call)} gets a prediction of shape {call.input_shape} and a target of shape "
            f"{call.target_shape}; they broadcast to {together}, so each prediction is pulled towards all targets, and "
            "the best answer is their mean",
            fix=fix,
            evidence=({"input": list(call.input_shape), "target": list(call.target_shape), "loss": list(together)},),
        )
    return None


@rule(
    Code(
        name="loss-input-kind",
        means="A loss function gets another kind of number than it expects: probabilities instead of their logarithms "
        "or of logits, logits instead of logarithms, targets beyond 0 and 1, or labels that mean something else.",
        fix="Pass what the loss function expects: the values before the last softmax or sigmoid, or `log_softmax`; "
        "targets between 0 and 1.",
    ),
    order=405,
    checks="what loss functions get: probabilities, logarithms, logits, targets",
    needs=[_seen_criteria],
)
@on_first_rank
def wrong_input_kinds(run: Run, rank: int) -> Finding | None:
    """Find probabilities where logarithms or logits are expected; the op that made them, or their values, tell."""
    for call in run.criteria(rank=rank):
        expected, got, fix = _mismatch(call) or ("", "", "")
        if not got:
            continue
        proof = ""
        if call.value is not None and call.value < 0:
            proof = f"; the result, {format_short(call.value)}, is below 0, which a true one never is"
        return error(
            rule="loss-input-kind",
            confidence=0.97 if call.made_by or proof else 0.85,
            step=call.step,
            rank=rank,
            phase="forward",
            source=call.source,
            title=f"{call.function} gets {got} instead of {expected}",
            why=f"{call.function} expects {expected}; it gets {got}{_between(call, got)}{_maker(call)}{proof}",
            fix=fix,
            evidence=({"function": call.function, "made_by": call.made_by, "value": call.value},),
        )
    return None


def _mismatch(call: CriterionCall) -> tuple[str, str, str] | None:
    """Return what is expected, what was passed, and what to do, if these differ."""
    has_probabilities = call.made_by == "softmax" or bool(
        call.rows_sum_to_one and call.input_min is not None and call.input_min >= 0 and call.input_shape[-1:] != (1,)
    )
    if call.function == "nll_loss" and has_probabilities:
        return "logarithms of probabilities", "probabilities", "use log_softmax instead of softmax, or cross_entropy"
    if call.function == "kl_div" and has_probabilities:
        return "logarithms of probabilities", "probabilities", "use log_softmax for the first argument of kl_div"
    has_logarithms = call.target_min is not None and call.target_min < 0 and (call.target_max or 0.0) <= 0.0
    if call.function == "kl_div" and has_logarithms and not call.settings.get("log_target"):
        return "probabilities as its target", "their logarithms", "pass log_target=True, or exp() of the target"
    if call.function == "binary_cross_entropy_with_logits" and call.made_by in ("sigmoid", "softmax"):
        return "logits", "probabilities", f"pass the values before the {call.made_by}, or use binary_cross_entropy"
    if call.function == "ctc_loss" and (call.input_max or 0.0) > _ABOVE_ONE:
        return "logarithms of probabilities", "logits", "pass log_softmax of them"  # no probability is above 1
    return _mismatch_of_targets(call)


def _mismatch_of_targets(call: CriterionCall) -> tuple[str, str, str] | None:
    low, high = call.target_min or 0.0, call.target_max or 0.0
    if call.function.startswith("binary_cross_entropy") and (low < 0.0 or high > 1.0):
        fix = f"divide the targets by {format_short(high)}" if low >= 0 else "map the targets to 0 and 1"
        return "targets between 0 and 1", f"targets from {format_short(low)} to {format_short(high)}", fix
    if call.function in _SIGNED and low == 0.0 and high == 1.0:
        fix = "map the targets to 1 and -1: 2 * target - 1"
        return "targets of 1 and -1", "targets of 0 and 1", fix
    if call.function == "ctc_loss" and call.num_blank:
        got = f"the blank {call.num_blank} times among {plural(call.num_counted or 0, 'target')}"
        fix = "number the labels so that none is the blank: from 1 on for blank=0, or blank=num_classes"
        return "labels other than the blank", got, fix
    return None


def _between(call: CriterionCall, got: str) -> str:
    if call.function in _SIGNED:
        return "; a target of 0 has no meaning for it, and counts as neither"
    if "target" in got:
        return (
            "; beyond that the loss has no lower bound" if call.function != "ctc_loss" else ", which it never predicts"
        )
    return f", between {format_short(call.input_min or 0.0)} and {format_short(call.input_max or 0.0)}"


def _maker(call: CriterionCall) -> str:
    return f", from a {call.made_by}" if call.made_by in ("softmax", "sigmoid") else ""


@rule(
    Code(
        name="labels-misaligned",
        means="The targets of a language model are tokens at the wrong distance: labels are shifted by the script and "
        "again by the model, or the wrong way.",
        fix="Shift once: most models that take `labels=` shift them themselves, so pass `labels=input_ids`.",
    ),
    order=525,
    checks="targets that are not the next token",
    needs=[
        needs.some(
            lambda run: any(call.offsets for rank in run.ranks for call in run.criteria(rank=rank)),
            "no loss over the tokens of a row was seen",
        )
    ],
)
@on_first_rank
def misaligned_labels(run: Run, rank: int) -> Finding | None:
    """Find targets that are all the token two or more later, or one before; silent if others are the next token."""
    calls = [call for call in run.criteria(rank=rank) if call.offsets]
    matches = [(call, {int(k) for k, share in call.offsets.items() if share >= _MATCH}) for call in calls]
    if not matches or any(not found or found & {0, 1} for _, found in matches):
        return None
    if any(max(call.offsets.get("0", 0.0), call.offsets.get("1", 0.0)) > _NO_MATCH for call in calls):
        return None
    call, offset = matches[0][0], min(matches[0][1], key=abs)
    where = f"{offset} places after" if offset > 0 else f"{plural(-offset, 'place')} before"
    made = error if offset > 1 else warning
    return made(
        rule="labels-misaligned",
        confidence=0.95 if offset > 1 else 0.8,
        step=call.step,
        rank=rank,
        phase="forward",
        source=call.source,
        title=f"the targets are the tokens {where} the inputs",
        why=f"in each row of the batch the target of a position is the token {where} it; a language model is to "
        "predict the next one, 1 place after",
        fix="shift once: pass labels=input_ids to a model that shifts them itself, or leave its own shift out"
        if offset > 1
        else "predict ids[:, 1:] from ids[:, :-1]",
        evidence=({"offset": offset, "shares": dict(call.offsets)},),
    )


@rule(
    Code(
        name="accumulation-uneven",
        means="Microbatches with different numbers of counted targets are averaged as if they had the same: tokens of "
        "short rows count more than those of long ones.",
        fix="Divide the sum of the losses by the number of targets of all microbatches of the step.",
    ),
    order=625,
    checks="mean losses of microbatches of different size",
    needs=[_seen_criteria],
)
@on_first_rank
def uneven_accumulation(run: Run, rank: int) -> Finding | None:
    """Find steps whose microbatches call one loss function, at one line, on different numbers of targets."""
    backwards = {
        step: sum(call.call == "backward" for call in calls)
        for step, calls in groupby(run.calls(rank=rank), lambda call: call.step)
    }
    for calls in _calls_by_line(run, rank):
        step, counts = calls[0].step, [call.num_counted or 0 for call in calls]
        is_mean = all(call.settings.get("reduction") == "mean" and not call.is_weighted for call in calls)
        if len(calls) < 2 or len(calls) != backwards.get(step) or not is_mean or min(counts) < 1:
            continue
        if max(counts) < _UNEVEN * min(counts):
            continue
        return warning(
            rule="accumulation-uneven",
            confidence=0.85,
            step=step,
            rank=rank,
            phase="forward",
            source=calls[0].source,
            title="microbatches with different numbers of targets count the same",
            why=f"the {len(counts)} microbatches of step {step} have {', '.join(map(str, counts[:8]))} counted "
            f"targets, and each mean counts 1/{len(counts)}: a target of the smallest weighs "
            f"{max(counts) / min(counts):.1f} times one of the largest",
            fix='sum the losses, reduction="sum", and divide by the number of targets of the whole step',
            evidence=({"counts": list(counts)},),
        )
    return None


@rule(
    Code(
        name="padding-in-loss",
        means="Padding is counted as a target: the model learns to predict padding, and the loss looks better than it "
        "is.",
        detected="Rows of targets end with one id, in runs of different length, and the loss does not ignore it.",
        fix="Pass its id as `ignore_index`, or set these targets to -100.",
    ),
    Code(
        name="target-never-seen",
        means="The token that ends a text is never a target, so the model never learns to stop. Often padding has the "
        "same id, and is ignored.",
        detected="The mask shows that most rows end with one id, and no counted target has that id.",
        fix="Give padding an id of its own, or ignore targets by the mask, not by their id.",
    ),
    order=535,
    checks="padding that counts, and ends of texts that do not",
    needs=[
        needs.some(
            lambda run: any(call.num_counted is not None for rank in run.ranks for call in run.criteria(rank=rank)),
            "no loss over class indices was seen",
        )
    ],
)
@on_first_rank
def wrong_targets_of_padding(run: Run, rank: int) -> Finding | None:
    """Find padding among the targets that count, and an end of text that is none of them."""
    for call in run.criteria(rank=rank):
        found = partial(warning, confidence=0.85, step=call.step, rank=rank, phase="forward", source=call.source)
        is_mean = call.settings.get("reduction") != "none" and not call.is_weighted
        if call.padding is not None and call.padding_share > _MIN_PADDING and is_mean:
            return found(
                rule="padding-in-loss",
                title=f"{call.padding_share:.0%} of the targets are padding",
                why=f"rows of targets end with the id {call.padding}, in runs of different length, and it is nowhere "
                f"else in them; {call.function} counts them like any other target",
                fix=f"pass ignore_index={call.padding}, or set these targets to -100",
                evidence=({"padding": call.padding, "share": call.padding_share},),
            )
        if call.never_target is not None:
            return found(
                rule="target-never-seen",
                title=f"the id {call.never_target}, with which texts end, is never a target",
                why=f"the mask shows that most rows end with the id {call.never_target}, but none of the "
                f"{call.num_counted} counted targets has it: the model cannot learn where a text ends",
                fix="give padding an id of its own, or ignore targets where the mask is 0, not where the id is that of "
                "padding",
                evidence=({"id": call.never_target, "num_counted": call.num_counted},),
            )
    return None


def _calls_by_line(run: Run, rank: int) -> Iterator[list[CriterionCall]]:
    """Yield the calls with class indices of each line in each step."""
    found: dict[tuple[int, str | None, str], list[CriterionCall]] = {}
    for call in run.criteria(rank=rank):
        if call.num_counted is not None and call.function in ("cross_entropy", "nll_loss"):
            found.setdefault((call.step, call.source, call.function), []).append(call)
    return iter(found.values())


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to, in which the loss is computed."""
    size = max(len(one), len(other))
    padded = [(1,) * (size - len(shape)) + tuple(shape) for shape in (one, other)]
    return tuple(max(a, b) if min(a, b) else 0 for a, b in zip(*padded, strict=True))


def _operation(call: CriterionCall) -> str:
    return "the difference" if call.function == "sub" else call.function
