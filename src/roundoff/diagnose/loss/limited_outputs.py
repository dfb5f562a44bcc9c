"""Outputs that cannot be what the loss asks for: limited scores, targets out of reach, a sample against itself."""

from __future__ import annotations

import math

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import CriterionCall, Finding, Run

_MIN_UNREACHABLE = 0.05
"""The share of targets that outliers do not explain."""
_WIDTHS = {"cosine": 2.0, "tanh": 2.0, "sigmoid": 1.0}
"""How far apart two scores can be."""
_NAMES = {"cosine": "cosines", "tanh": "results of a tanh", "sigmoid": "results of a sigmoid"}
_RANGES = {
    "relu": "at 0 or above",
    "tanh": "between -1 and 1",
    "sigmoid": "between 0 and 1",
    "cosine": "between -1 and 1",
}
_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits")
_REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub", "gaussian_nll_loss")

_seen_criteria = needs.some(
    lambda run: any(run.criteria(rank=rank) for rank in run.ranks), "no loss function was seen in a replayed step"
)


@rule(
    Code(
        name="outputs-limited",
        means="The last function of the model keeps its outputs within limits that the loss does not expect: targets "
        "lie beyond them, or logits can never be far enough apart, so the loss cannot fall below a floor.",
        fix="Leave the last activation out; multiply cosines by a scale (divide by a temperature such as 0.07).",
        detected="The loss gets cosines, or the result of a ReLU, tanh or sigmoid.",
    ),
    Code(
        name="dropout-on-output",
        means="Dropout is the last thing that happens to the outputs before the loss: some of them are 0 at random and "
        "the others too large, whatever the model has learned.",
        fix="Move dropout before the last layer.",
        detected="The loss gets the result of a dropout.",
    ),
    Code(
        name="contrast-with-itself",
        means="A contrastive loss compares each sample with itself, too: the largest similarity there can be, which is "
        "never the answer. The loss cannot become small, and pushes other samples apart less than it should.",
        fix="Take the diagonal out: `similarity.fill_diagonal_(float('-inf'))`.",
        detected="The scores are square, and their largest number is on the diagonal.",
    ),
    order=408,
    checks="outputs that cannot be what the loss asks for",
    needs=[_seen_criteria],
)
@on_first_rank
def limited_outputs(run: Run, rank: int) -> Finding | None:
    """Find losses whose inputs are limited by what made them, while targets or the loss itself need others."""
    for call in run.criteria(rank=rank):
        found = _of_itself(call) or _of_dropout(call) or _unreachable(call) or _limited_logits(call)
        if found is None:
            continue
        code, title, why, fix = found
        return warning(
            rule=code,
            confidence=0.9,
            step=call.step,
            rank=rank,
            phase="forward",
            source=call.source,
            title=title,
            why=why,
            fix=fix,
            evidence=({"function": call.function, "limited_by": call.limited_by, "value": call.value},),
        )
    return None


def _of_itself(call: CriterionCall) -> tuple[str, str, str, str] | None:
    if not call.has_own_diagonal:
        return None
    size = call.input_shape[0]
    return (
        "contrast-with-itself",
        "each sample is compared with itself in the loss",
        f"the {size} x {size} scores have the same number, {format_short(call.input_max or 0.0)}, everywhere on their "
        "diagonal, the largest of each row, and no target is there: it is the similarity of a sample with itself, "
        "which is never the right answer",
        "fill the diagonal of the similarities with -inf before the loss: similarity.fill_diagonal_(float('-inf'))",
    )


def _of_dropout(call: CriterionCall) -> tuple[str, str, str, str] | None:
    if call.limited_by != "dropout":
        return None
    return (
        "dropout-on-output",
        "dropout is applied to the outputs that the loss gets",
        f"{call.function} gets the result of a dropout: a part of the outputs is 0 at random in every step",
        "move the dropout before the last layer",
    )


def _unreachable(call: CriterionCall) -> tuple[str, str, str, str] | None:
    share = call.num_unreachable / max(call.num_targets, 1)
    if call.function not in _REGRESSIONS or share < _MIN_UNREACHABLE or call.is_bootstrapped:
        return None
    low, high = call.target_min or 0.0, call.target_max or 0.0
    made = f"a {call.limited_by}" if call.limited_by != "cosine" else "a cosine"
    return (
        "outputs-limited",
        f"{share:.0%} of the targets are out of reach of the outputs",
        f"the outputs come from {made} and are {_RANGES[call.limited_by]}; targets range from {format_short(low)} to "
        f"{format_short(high)}, and {call.num_unreachable} of {call.num_targets} are beyond that",
        f"leave out the {call.limited_by} after the last layer, or scale the targets into its range",
    )


def _limited_logits(call: CriterionCall) -> tuple[str, str, str, str] | None:
    if call.function not in _LOGITS or call.made_by in ("softmax", "log_softmax"):
        return None
    if call.limited_by == "relu":
        return (
            "outputs-limited",
            "the logits come from a ReLU and cannot be negative",
            f"{call.function} gets the result of a ReLU, between {format_short(call.input_min or 0.0)} and "
            f"{format_short(call.input_max or 0.0)}: no score can say that a class is unlikely, and where it is 0 "
            "there is no gradient",
            "leave out the ReLU after the last layer",
        )
    width = _WIDTHS.get(call.limited_by)
    if width is None or len(call.input_shape) < 2 or call.function != "cross_entropy":
        return None
    width *= call.limit_factor
    classes = call.input_shape[1]
    floor, guess = math.log(1 + (classes - 1) * math.exp(-width)), math.log(max(classes, 2))
    scaled = f", times {format_short(call.limit_factor)}" if call.limit_factor < 1 else ""
    advice = (
        "divide the cosines by the temperature instead of multiplying by it"
        if call.limit_factor < 1
        else "multiply the cosines by a scale, or divide by a temperature such as 0.07, before the loss"
        if call.limited_by == "cosine"
        else f"leave out the {call.limited_by} after the last layer"
    )
    return (
        "outputs-limited",
        f"the loss cannot fall below {format_short(floor)}",
        f"its logits are {_NAMES[call.limited_by]}, {_RANGES[call.limited_by]}{scaled}: with {classes} classes even "
        f"perfect answers cost ln(1 + {classes - 1} e^-{format_short(width)}) = {format_short(floor)}, where "
        f"guessing costs {format_short(guess)}",
        advice,
    )
