"""A scheduler that lowers the rate when its metric stops improving, and was told the wrong direction for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, SchedulerDetail
from roundoff.words import plural

_MIN_VALUES, _MIN_BETTER = 4, 3
_MAX_COUNTED, _COUNT_ERROR = 1000, 2e-7
"""A share of at most this many samples, in fp32, is that near to a fraction; other numbers rarely are."""
_SAME_LOSS = 1e-3


@dataclass(frozen=True, slots=True)
class _Decision:
    """One step of the scheduler."""

    step: int
    metric: float
    rate: float
    eval_loss: float | None
    """Of the same step of the training."""


@rule(
    Code(
        name="plateau-inverted",
        means="ReduceLROnPlateau waits for its metric to fall (mode='min'), and gets one that is better the higher it "
        "is, such as an accuracy; or the reverse. Each improvement counts as a bad epoch, and the rate collapses while "
        "the training goes well.",
        fix="Say `ReduceLROnPlateau(optimizer, mode='max')` for an accuracy, or pass the evaluation loss with "
        "`mode='min'`.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=674,
    checks="in which direction the metric of a plateau scheduler improves",
    needs=[needs.calls("scheduler", missing="no learning rate schedule was stepped")],
)
@on_first_rank
def inverted_plateau(run: Run, rank: int) -> Finding | None:
    """Find rates that a plateau scheduler lowered although its metric improved, in the direction it has by its nature.

    The nature of a metric is known where it is the evaluation loss itself, or moves against it, or is a count out of
    so many samples. An evaluation loss that rises is overfitting, which the scheduler is right to answer.
    """
    eval_losses = {row.step: row.eval_loss for row in run.metrics(rank=rank)}
    told, decisions = set(), []
    for call in run.calls(rank=rank):
        detail = call.detail
        if isinstance(detail, SchedulerDetail) and detail.metric is not None and (rate := (*detail.lr, None)[0]):
            told.add(detail.improves)
            decisions.append(_Decision(call.step, detail.metric, rate, eval_losses.get(call.step)))
    if len(told) != 1 or len(decisions) < _MIN_VALUES:
        return None
    is_min = told == {"min"}
    better = _records(decisions, is_min=not is_min)
    lowered = [now for before, now in itertools.pairwise(decisions) if now.rate < 0.99 * before.rate]
    if len(better) < _MIN_BETTER or not lowered or len(better) <= len(_records(decisions, is_min=is_min)):
        return None
    if not (_grows_with_success(decisions) if is_min else _is_loss(decisions)):
        return None
    first, last, other = decisions[0], decisions[-1], "max" if is_min else "min"
    kind, goes = ("a number that is better the higher it is", "rose") if is_min else ("a loss", "fell")
    mode = "min" if is_min else "max"
    return warning(
        rule="plateau-inverted",
        confidence=0.93,
        step=lowered[0].step,
        rank=rank,
        title=f"the rate is lowered while the metric improves: ReduceLROnPlateau has mode='{mode}'",
        why=f"the scheduler got {kind}, which {goes} from {format_short(first.metric)} to {format_short(last.metric)} "
        f"in {plural(len(decisions), 'call')}, and takes that for getting worse: it lowered the rate "
        f"{plural(len(lowered), 'time')}, from {format_short(first.rate)} to {format_short(last.rate)}",
        fix=f"make it ReduceLROnPlateau(optimizer, mode='{other}')"
        + (", or pass the evaluation loss instead" if is_min else ""),
        evidence=({"metrics": [one.metric for one in decisions[-8:]], "rates": [one.rate for one in decisions[-8:]]},),
    )


def _records(decisions: Sequence[_Decision], *, is_min: bool) -> list[_Decision]:
    """Return those, but for the first, whose metric is lower (or higher) than all before."""
    found, best = [], decisions[0].metric
    for one in decisions[1:]:
        if one.metric < best if is_min else one.metric > best:
            found.append(one)
            best = one.metric
    return found


def _is_loss(decisions: Sequence[_Decision]) -> bool:
    return all(one.eval_loss is not None and _is_near(one.metric, one.eval_loss) for one in decisions)


def _is_near(x: float, y: float) -> bool:
    return math.isclose(x, y, rel_tol=_SAME_LOSS)


def _grows_with_success(decisions: Sequence[_Decision]) -> bool:
    """Return whether a metric rises as the evaluation loss falls, or is a share of samples."""
    losses = [one.eval_loss for one in decisions]
    if all(loss is not None for loss in losses):
        if any(_is_near(one.metric, one.eval_loss or 0.0) for one in decisions):
            return False
        pairs = [(one.metric, one.eval_loss or 0.0) for one in decisions]
        signs = [(a - c) * (b - d) for place, (a, b) in enumerate(pairs) for c, d in pairs[:place]]
        if sum(sign < 0 for sign in signs) > 3 * sum(sign > 0 for sign in signs):
            return True
    return all(map(_is_count, (one.metric for one in decisions)))


def _is_count(value: float) -> bool:
    """Return whether a number is a share of at most so many samples, or that in percent."""
    share = value / 100 if value > 1 else value
    return 0 <= share <= 1 and abs(float(Fraction(share).limit_denominator(_MAX_COUNTED)) - share) <= _COUNT_ERROR
