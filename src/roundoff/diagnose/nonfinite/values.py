"""NaN and infinity: where they came from, what they did, or at least that they are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from roundoff.diagnose import needs
from roundoff.diagnose.nonfinite.bad_step import BadStep, bad_steps, spread_of
from roundoff.diagnose.nonfinite.loop_value import loop_value_finding
from roundoff.diagnose.nonfinite.origin import OriginPlace, find_origin, losses_of
from roundoff.diagnose.nonfinite.origin_finding import domain_fix, left_its_domain, nonfinite_input, origin_finding
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule, warning
from roundoff.diagnose.step_flow import recorded_steps
from roundoff.diagnose.wording import format_of, format_short, format_whole, largest_of
from roundoff.runs import Finding, Metrics, Run
from roundoff.runs.records.event import StepOp, bare_name, ops_of
from roundoff.words import join_names, plural

_NUM_STEPS = 20
"""An update up to this many measured steps earlier may be the cause."""


_NARROW = ("float16", "bfloat16")


@rule(
    Code(
        name="overflow",
        means="An op computed a result that is too large for its format, although its inputs were finite. The infinity "
        "reached a loss, a gradient or a weight; everything after that is a consequence.",
        detected="A bad step is replayed op by op. The origin is the first op with good inputs and a bad result that "
        "reaches a loss, a gradient, a weight or a statistic. That op is run again in fp64 with its real inputs: if "
        "the result is finite there, the format was too narrow.",
        fix="Compute this op in fp32, with a cast or a recipe override, or make its inputs smaller before it, not its "
        "result after it. The verdict shows how.",
        leads_to=(FaultEffect.NONFINITE,),
        follows_from=(FaultEffect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
    ),
    Code(
        name="loss-scale-overflow",
        means="The gradients are finite, but become infinite once they are multiplied by the loss scale.",
        detected="The origin is in backward, in a narrow format, and the value that overflowed there is finite when "
        "divided by the loss scale.",
        fix="Use a dynamic scale, which backs off by itself, or a smaller static one, and skip steps whose gradients "
        "are not finite.",
        leads_to=(FaultEffect.NONFINITE,),
    ),
    Code(
        name="domain-error",
        means="An op received an argument for which it has no result: log(0), 0/0, the square root of a negative "
        "number. No format is wide enough for that.",
        detected="As for an overflow, but the op gives a bad value in fp64 too; its arguments show why.",
        fix="Keep the argument inside the domain before the op: `log_softmax` instead of `log(softmax)`, an `eps` "
        "inside the square root, and a safe argument in the branch that `where` does not take.",
        leads_to=(FaultEffect.NONFINITE,),
        follows_from=(FaultEffect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
    ),
    Code(
        name="masked-softmax",
        means="A row of an attention is masked completely, and a softmax over -inf alone is 0/0.",
        detected="The origin is a softmax with a row that contains only -inf.",
        fix="Leave one position of every row unmasked, or mask with a large negative number instead of -inf.",
        leads_to=(FaultEffect.NONFINITE,),
    ),
    Code(
        name="nonfinite-update",
        means="Gradients were finite, but the optimizer's update made weights that are not. In fp16 the usual eps of "
        "1e-8 is 0, so Adam divides by 0.",
        detected="The origin is an op of the optimizer: gradients and weights before it were finite.",
        fix='Keep fp32 master weights, `apply_recipe(model, optimizer, "O2")`, use an eps that the format can '
        "represent, or lower the learning rate.",
        leads_to=(FaultEffect.NONFINITE,),
        follows_from=(FaultEffect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
    ),
    Code(
        name="nonfinite-input",
        means="The batch already contained NaN or infinity, before any layer saw it.",
        detected="The first bad tensor of the replayed step is an input of the model that no op computed.",
        fix="Clean the sample that the verdict names, and check samples where they are read.",
        leads_to=(FaultEffect.NONFINITE,),
    ),
    Code(
        name="norm-statistics-nonfinite",
        means="The running statistics of a normalization layer contain NaN or infinity from a bad batch. Even if the "
        "step was skipped, the buffer keeps them, and every later evaluation is broken.",
        detected="The buffers of normalization layers are checked after a step with a bad batch, even if a scaler "
        "skipped the step.",
        fix="Restore the buffers when a step is skipped (recipes do so), and reload or reset the broken ones.",
        leads_to=(FaultEffect.NONFINITE, FaultEffect.BREAKS_EVALUATION),
        follows_from=(FaultEffect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
    ),
    Code(
        name="no-valid-targets",
        means="Every target of a batch is `ignore_index`, so the mean loss is 0/0. The gradients are 0 and the weights "
        "are fine.",
        detected="The origin is a loss over targets whose weights add up to 0.",
        fix="Skip such batches, or divide the sum of the losses by at least 1.",
        leads_to=(FaultEffect.NONFINITE,),
    ),
    Code(
        name="step-on-nonfinite-gradients",
        means="Gradients were not finite, but the optimizer stepped anyway: the weights are lost.",
        detected="Gradients were not finite when the optimizer stepped; nothing skipped or undid the step.",
        fix="Check the gradient norm before each step and skip the step if it is not finite; a GradScaler and "
        "roundoff's recipes do that. Then find out where the gradients came from.",
        follows_from=(FaultEffect.BLOWS_UP, FaultEffect.NONFINITE, "loss-scale-collapsed", "cancellation"),
    ),
    Code(
        name="loss-nonfinite",
        means="A loss was NaN or infinite, but no op can be blamed with certainty: there was no snapshot to replay the "
        "step from, or the replay gave a different result.",
        detected="Every loss is checked; this code remains when no replay leads to an op.",
        fix="Give snapshots more memory with `--snapshot-memory`, or record the step: `roundoff record --steps`.",
        follows_from=(
            FaultEffect.BLOWS_UP,
            FaultEffect.NONFINITE,
            "step-on-nonfinite-gradients",
            "loss-scale-collapsed",
            "cancellation",
        ),
    ),
    order=810,
    checks="NaN and infinity in losses, gradients, weights and buffers",
    needs=[
        needs.some(
            lambda run: (
                any(run.metrics(rank=rank) or run.anomalies(rank=rank) for rank in run.ranks)
                or run.steps
                or run.replayed_steps
            ),
            "no step was recorded",
        )
    ],
)
def nonfinite_values(run: Run) -> list[Finding]:
    """Find where NaN and infinity came from: one finding per cause, with its consequences as related findings.

    Steps that loss scaling skipped on purpose are not reported. A cause that shows again in later steps or on other
    ranks is reported once.
    """
    steps = [bad for bad in bad_steps(run) if not bad.is_deliberate]
    from_elsewhere = {bad.step for bad in steps if bad.place is not None and bad.place.kind in ("op", "input")}
    found = [
        _finding(run, bad)
        for bad in steps
        if not (bad.place is not None and bad.place.kind == "collective" and bad.step in from_elsewhere)
    ]
    return _once_each(found)


def first_nonfinite(run: Run) -> Finding | None:
    """Return the finding about the earliest bad value that matters, or None."""
    found = nonfinite_values(run)
    return min(found, key=lambda finding: finding.step or 0) if found else None


def _finding(run: Run, bad: BadStep) -> Finding:
    place = bad.place
    if (made_by_loop := loop_value_finding(run, bad)) is not None:
        main = made_by_loop
    elif place is None or place.kind in ("parameter", "state", "collective"):
        main = loss_without_origin(bad)
    elif place.kind == "input":
        main = nonfinite_input(bad, place)
    else:
        main = overflow_by_scale(bad, origin_finding(run, bad, place))
    related = [found for found in (step_on_bad_gradients(bad), poisoned_statistics(bad)) if found is not None]
    # In a wide format, and after a loss that has grown for steps, the updates themselves are at fault.
    is_narrow = place is not None and place.bad.dtype in _NARROW and bad.growth_before is None
    if main.rule == "overflow" and is_narrow and (update := update_before(run, bad)) is not None:
        related.insert(0, update)
    if bad.was_skipped and bad.has("buffer"):
        statistics = related.pop()  # the only effect that remains of the batch
        return replace(statistics, related=(*related, main))
    return replace(main, related=tuple(other for other in related if other.rule != main.rule))


def _once_each(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding about each place, with the other steps in which it shows."""
    kept: dict[tuple[str, str | None, str | None], Finding] = {}
    again: dict[tuple[str, str | None, str | None], set[int]] = {}
    for finding in sorted(findings, key=lambda finding: (finding.step or 0, finding.rank or 0)):
        key = (finding.rule, finding.site, finding.op)
        kept.setdefault(key, finding)
        if finding.step is not None and finding.step != kept[key].step:
            again.setdefault(key, set()).add(finding.step)
    return [
        replace(finding, evidence=(*finding.evidence, {"also_in_steps": sorted(again[key])}))
        if key in again
        else finding
        for key, finding in kept.items()
    ]


def update_before(run: Run, bad: BadStep) -> Finding | None:
    """Return a finding about the latest update that was larger than the weights it changed; None without one."""
    known = run.parameters(rank=bad.rank)["step"].unique()
    measured = [step for step in known if step < bad.step][-_NUM_STEPS:]
    rows = run.parameters(step=measured, rank=bad.rank).to_list()
    whole = {step: math.hypot(*(row["l2"] for row in rows if row["step"] == step)) for step in measured}
    grown = [row for row in rows if _is_large(row, whole[row["step"]])]
    if not grown:
        return None
    worst = max(grown, key=lambda row: (row["step"], row["update_l2"] / row["l2"]))
    return warning(
        rule="lr-too-high",
        confidence=0.7,
        step=worst["step"],
        rank=bad.rank,
        phase="optimizer",
        site=worst["site"],
        parameter=worst["parameter"],
        title=f"one update enlarged {worst['parameter']}",
        why=f"the update of step {worst['step']} has the norm {format_short(worst['update_l2'])}, the parameter after "
        f"it {format_short(worst['l2'])}",
        fix="lower the learning rate, warm it up, or clip the gradients",
    )


def _is_large(row: dict[str, Any], whole: float) -> bool:
    """Say whether an update is half the parameter after it, and large in the whole model: biases start at 0."""
    update = row["update_l2"]
    return update is not None and update > row["l2"] / 2 and update > whole / 4


_CHECK = "check before the step: torch.nn.utils.clip_grad_norm_(..., error_if_nonfinite=True), or use a GradScaler"


def step_on_bad_gradients(bad: BadStep) -> Finding | None:
    """Return a finding if the optimizer stepped on gradients that are not finite, or None."""
    if not bad.gradients_are_bad or bad.was_skipped or bad.was_undone:
        return None
    names = bad.names_of("gradient")
    num_bad = bad.place.liveness.num_bad_gradients if bad.place is not None else len(names)
    what = f"{plural(num_bad, 'gradient')} were not finite" if num_bad > 1 else "a gradient was not finite"
    return error(
        rule="step-on-nonfinite-gradients",
        confidence=0.9,
        step=bad.step,
        rank=bad.rank,
        phase="optimizer",
        parameter=names[0] if names else None,
        title="the optimizer stepped on gradients that are not finite",
        why=f"{what}{_in_brackets(names)} when the step was taken, and the weights have not been finite since",
        fix=_CHECK,
        evidence=({"parameters": list(names)},),
    )


def poisoned_statistics(bad: BadStep) -> Finding | None:
    """Return a finding if running statistics contain a bad batch; None if no buffer is bad."""
    names = bad.names_of("buffer")
    if not names or (bad.was_undone and len({anomaly.kind for anomaly in bad.anomalies}) > 1):
        return None  # undone: what else was bad in the step is the finding
    after = (
        "the step was undone, and they have their old values" if bad.was_undone else "evaluation is broken from here on"
    )
    skipped = "the optimizer's step was skipped, but " if bad.was_skipped else ""
    return error(
        rule="norm-statistics-nonfinite",
        confidence=0.95,
        step=bad.step,
        rank=bad.rank,
        phase="forward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title=f"the running statistics {names[0]} are not finite",
        why=f"{skipped}running statistics are updated in forward and keep the bad batch of step {bad.step}"
        f"{_in_brackets(names[1:], 'also ')}: {after}",
        fix="restore the buffers when a step is skipped, as the optimizer of apply_recipe does, "
        "or check the batch before the forward",
        evidence=({"buffers": list(names)},),
    )


def loss_without_origin(bad: BadStep) -> Finding:
    """Return a finding that something is not finite, and why its origin is unknown."""
    parts = [kind for kind in ("loss", "gradient", "weight", "buffer") if bad.has(kind)]
    if bad.loss_is_bad or not parts:
        return _loss_finding(bad)
    if parts == ["buffer"]:
        return poisoned_statistics(bad) or _loss_finding(bad)
    if "gradient" in parts:
        return step_on_bad_gradients(bad) or _loss_finding(bad)
    names = bad.names_of("weight")
    return error(
        rule="nonfinite-update",
        confidence=0.6,
        step=bad.step,
        rank=bad.rank,
        phase="optimizer",
        parameter=names[0] if names else None,
        title="weights are not finite after the optimizer's step",
        why=f"loss and gradients were finite{_in_brackets(names)}; {_why_unknown(bad)}\n{_fine_before(bad)}".strip(),
        fix="check the learning rate and the optimizer's eps; narrow formats need fp32 master weights",
    )


def _loss_finding(bad: BadStep) -> Finding:
    return error(
        rule="loss-nonfinite",
        confidence=0.9,
        step=bad.step,
        rank=bad.rank,
        phase="forward",
        title="the loss is not finite" if bad.loss_is_bad else "the step is not finite",
        why=f"{_why_unknown(bad)}\n{_fine_before(bad)}".strip(),
        fix=f"record the step with its inputs:  roundoff record --inputs --stacks --steps {bad.step} {bad.script}",
    )


def _why_unknown(bad: BadStep) -> str:
    place = bad.place
    if place is None and bad.replay_note is not None:
        return f"{bad.replay_note}, so the op it came from is unknown"
    if bad.events is None:
        return "the step was not replayed, so the op it came from is unknown"
    if place is None:
        return "in the replay of the step everything that matters is finite, so the op it came from is unknown"
    if place.kind == "parameter":
        return f"{place.bad.parameter} was not finite when the step began: it comes from an earlier step"
    if place.kind == "collective":
        return f"it came from another rank, with {place.bad.op_name}"
    return (
        f"a tensor that {place.bad.op_name} in {place.site} reads was not finite when the step began: a buffer, the "
        "optimizer's state, or uninitialized memory (torch.empty)"
    )


def _fine_before(bad: BadStep) -> str:
    return f"Losses were finite up to step {bad.step - 1}." if bad.step and bad.place is None else ""


def _in_brackets(names: Sequence[str], before: str = "") -> str:
    return f" ({before}{join_names(names, at_most=3)})" if names else ""


# -- loss scales that collapse -----------------------------------------------------------------------------------------


_MIN_SKIPPED = 10
"""This many skipped steps in a row, without a finite loss, are no longer a search for a scale."""


@rule(
    Code(
        name="loss-scale-collapsed",
        means="The scaler skips step after step and keeps halving its scale, but something is not finite at any scale. "
        "A scale below 1 is worse than none.",
        fix="Keep the op that the verdict names in fp32, or find the batch that is not finite.",
    ),
    order=820,
    checks="loss scales that keep falling",
    needs=[needs.loss_scaling],
)
@on_first_rank
def collapsed_loss_scales(run: Run, rank: int) -> Finding | None:
    """Find a scaler that keeps skipping steps because something is not finite at any scale.

    A scale below 1 makes gradients smaller than they are, and no scale helps a loss that is not finite. Skipped steps
    on the way from a large initial scale to one that fits are normal.
    """
    stretch = _find_collapse(run.metrics(rank=rank))
    if stretch:
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
        return error(
            rule="loss-scale-collapsed",
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
    return None


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
