"""Loss scales that keep falling, and a fixed one that is too large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from roundoff.diagnose import needs
from roundoff.diagnose.flow import recorded_steps
from roundoff.diagnose.nonfinite.bad_step import BadStep, spread_of
from roundoff.diagnose.nonfinite.domain import domain_fix, left_its_domain
from roundoff.diagnose.nonfinite.origin import OriginPlace, find_origin, losses_of
from roundoff.diagnose.rule import Code, Rule
from roundoff.diagnose.wording import format_of, format_short, format_whole, largest_of
from roundoff.runs import Finding, Metrics, Run, Severity
from roundoff.runs.records.step_ops import StepOp, bare_name, ops_of
from roundoff.words import plural

_MIN_SKIPPED = 10
"""This many skipped steps in a row, without a finite loss, are no longer a search for a scale."""


def collapsed_loss_scales(run: Run) -> list[Finding]:
    """Find a scaler that keeps skipping steps because something is not finite at any scale.

    A scale below 1 makes gradients smaller than they are, and no scale helps a loss that is not finite. Skipped steps
    on the way from a large initial scale to one that fits are normal.
    """
    for rank in run.ranks:
        stretch = _find_collapse(run.metrics(rank=rank))
        if stretch:
            return [_collapse_finding(run, rank, stretch)]
    return []


def _find_collapse(metrics: Sequence[Metrics]) -> list[Metrics]:
    """Return the first stretch of skipped steps that ends with a scale below 1, or is long and has no finite loss."""
    stretch: list[Metrics] = []
    for metric in (*metrics, None):
        if metric is not None and metric.skipped:
            stretch.append(metric)
            continue
        scales = [skipped.loss_scale for skipped in stretch if skipped.loss_scale is not None]
        bad_losses = [skipped for skipped in stretch if skipped.loss is not None and not math.isfinite(skipped.loss)]
        is_long = len(bad_losses) == len(stretch) >= _MIN_SKIPPED
        if scales and (min(scales) < 1 or is_long):
            return stretch
        stretch = []
    return []


def _collapse_finding(run: Run, rank: int, stretch: Sequence[Metrics]) -> Finding:
    first, last = stretch[0], stretch[-1]
    steps = {metric.step for metric in stretch}
    places = (
        (step, find_origin(events, step=step, rank=rank)) for step, events in recorded_steps(run) if step in steps
    )
    _, place = next(((step, place) for step, place in places if place is not None), (None, None))
    scales = [metric.loss_scale for metric in (first, last)]
    from_to = (
        f", while the scale fell from {format_short(scales[0])} to {format_short(scales[1])}"
        if scales[0] and scales[1]
        else ""
    )
    return Finding(
        rule="loss-scale-collapsed",
        severity=Severity.ERROR,
        confidence=0.95,
        step=first.step,
        rank=rank,
        phase=place.phase if place is not None else "backward",
        site=place.site if place is not None else None,
        op=place.bad.op_name if place is not None else None,
        source=place.bad.source if place is not None else None,
        title="the loss scale keeps falling, and no step is taken",
        why=f"{plural(len(stretch), 'step')} in a row were skipped since step {first.step}{from_to}: something is "
        f"not finite at any scale\n{_describe_origin(place)}".strip(),
        fix=_fix(place),
        evidence=({"skipped": len(stretch), "first_scale": scales[0], "last_scale": scales[1]},),
    )


def _describe_origin(place: OriginPlace | None) -> str:
    if place is None:
        return ""
    reach = max((x.absmax for x in place.inputs if x.absmax == x.absmax), default=0.0)
    what = "NaN" if place.bad.num_nan else "infinity"
    name = format_of(place.bad.dtype)
    where = f"{place.bad.op_name} in {place.site}, {place.phase}"
    return f"It starts in {where}: {what} in {name} from inputs up to {format_short(reach)}."


def _fix(place: OriginPlace | None) -> str:
    if place is None:
        return "record a skipped step, and find the first tensor that is not finite"
    if left_its_domain(place, None):
        return domain_fix(place, None, ())
    op = bare_name(place.op)
    return f"compute {op} in {place.site} in fp32, or make its inputs smaller; the scale is not to blame"


def overflow_by_scale(bad: BadStep, finding: Finding) -> Finding:
    """Turn the finding about an overflow in backward into one about the loss scale, if that is the cause.

    A loss may be scaled by hand: backward then starts from a multiple of another number. The scale is the cause if the
    overflowed value, divided by it, fits into the format.
    """
    place, origin = bad.place, bad.origin
    if finding.rule != "overflow" or place is None or bad.events is None or bad.was_skipped:
        return finding
    ops = ops_of(
        event for event in bad.events.iter_events(step=bad.events_step, rank=bad.rank) if event.phase != "eval"
    )
    makes_the_loss = place.bad.op.startswith("aten.mul") and any(place.bad.hash == loss.hash for loss in losses_of(ops))
    factor = origin.arguments.get("other") if origin is not None and makes_the_loss else None
    scale = float(factor) if isinstance(factor, (int, float)) else _scale_by_hand(ops)
    if scale is None and bad.metrics is not None:
        scale = bad.metrics.loss_scale
    if scale is None or scale <= 1:
        return finding
    name = format_of(place.bad.dtype)
    peak = origin.fp64_absmax if origin is not None and origin.fp64_absmax is not None else None
    if not makes_the_loss and (place.phase != "backward" or peak is None or peak / scale > largest_of(name)):
        return finding
    values = (
        f": {format_short(peak)} exceeds {format_whole(largest_of(name))}, unscaled it is {format_short(peak / scale)}"
        if peak
        else ""
    )
    return replace(
        finding,
        rule="loss-scale-overflow",
        title=f"the loss scale {format_whole(scale)} is too large for {name}",
        why=f"the gradients are infinite when scaled, but finite unscaled{values}\n{spread_of(bad, place)}",
        fix="use a dynamic scale, which backs off by itself: torch.amp.GradScaler, or apply_recipe(model, optimizer, "
        '"O2")\nor a smaller scale, and skip steps whose gradients are not finite',
        evidence=(*finding.evidence, {"loss_scale": scale}),
    )


def _scale_by_hand(ops: Sequence[StepOp]) -> float | None:
    """Return the factor by which the loop multiplied its loss, if it did."""
    for loss in losses_of(ops):
        for op in ops:
            is_scaling = op.bare in ("mul", "div") and op.inputs and op.inputs[0].num_elements == 1
            if is_scaling and any(out.hash == loss.hash and out.num_elements == 1 for out in op.outputs):
                before, after = op.inputs[0], op.outputs[0]
                if before.absmax > 0 and after.absmax == after.absmax:
                    return after.absmax / before.absmax
    return None


RULES = (
    Rule(
        order=820,
        checks="loss scales that keep falling",
        find=collapsed_loss_scales,
        needs=(needs.loss_scaling,),
        codes=(
            Code(
                name="loss-scale-collapsed",
                means="The scaler skips step after step and keeps halving its scale, but something is not finite at "
                "any scale. A scale below 1 is worse than none.",
                fix="Keep the op that the verdict names in fp32, or find the batch that is not finite.",
            ),
        ),
    ),
)
