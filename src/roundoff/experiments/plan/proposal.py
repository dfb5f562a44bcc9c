"""Proposes a format for every site from one measured step; the proposal is then verified."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.site_choices import (
    FormatChoice,
    Proposal,
    SiteOp,
    SitePlan,
    choose_formats,
    format_choices,
    site_ops,
)
from roundoff.formats import BlockFormat, ScaledBlocks, format_named
from roundoff.runs.records.event import MODEL
from roundoff.sensitivity.effects import LossEffect, Rounded, Sensitivity

RiskKind = Literal["overflow", "headroom", "lost", "underflow"]

HEADROOM = 4.0
"""Values grow during training: one within this factor of the largest number counts as a later overflow."""
_MIN_VALUE_DB = 10.0
"""A tensor whose rounding error is a third of its norm is too inaccurate to use."""
_MIN_GRADIENT_DB = 20.0
"""A gradient with an error of a tenth of its norm, from what became 0 or subnormal, has lost its direction."""
_SCALED_ROOM = 2.0**6
"""With a loss scale a gradient is safe if its largest number exceeds the smallest normal one by this factor."""


_GLOBAL_SHARE = 0.25
"""If gradients vanish at a larger share of the ops than this, the loss is too small; the ops are not the cause."""
_LARGEST_SCALE = 2.0**24
_USUAL_SCALE = 2.0**16


def propose(
    sensitivity: Sensitivity,
    *,
    formats: Sequence[str],
    target: Target,
    modules_only: bool = False,
    is_scaled: bool = False,
    only_ops: frozenset[str] | None = None,
    layers_only: bool = False,
) -> Proposal:
    """Pick, for every site, the narrowest of `formats` (or fp32) that passes all checks and meets the target.

    Args:
        sensitivity: One measured step; it must hold all of `formats`.
        formats: What may be chosen, besides fp32.
        target: How much the loss may change, or how much memory there is.
        modules_only: Give formats to whole sites only, never to single ops.
        is_scaled: Whether the loss is scaled anyway; otherwise scaling is proposed where gradients vanish everywhere.
        only_ops: The ops that the recipe rounds, if not all; the others are ignored.
        layers_only: Whether it rounds only what uses parameters.

    Raises:
        PlanError: a format was not measured, nothing was, or the budget is too small.
    """
    _check_measured(sensitivity, formats)
    units = [
        unit
        for unit in site_ops(sensitivity)
        if _is_planned(unit) and (not only_ops or unit.op in only_ops) and (not layers_only or unit.has_weights)
    ]
    narrowest = min(formats, key=_width)
    scaling = None if is_scaled else _why_scaled(units, narrowest)
    scale = _loss_scale(units, narrowest) if is_scaled or scaling is not None else 1.0
    risks = {unit.key: {fmt: risk_of(unit, fmt, loss_scale=scale) for fmt in formats} for unit in units}
    choices = [format_choices(unit, [fmt for fmt in formats if risks[unit.key][fmt] is None]) for unit in units]
    picked = choose_formats(choices, target=target, loss=sensitivity.loss)
    chosen = {unit.key: choice for unit, choice in zip(units, picked, strict=True)}
    reasons = {unit.key: _reason(unit, chosen[unit.key], risks[unit.key], target) for unit in units}
    parameters = {site: count for site, count in sensitivity.num_parameters.items() if ":" not in site}
    by_site: dict[str, list[SiteOp]] = {}
    for unit in units:
        by_site.setdefault(unit.site, []).append(unit)
    sites = [
        _site_plan(site, own, chosen, reasons, whole=modules_only or not _is_worth_ops(site, own))
        for site, own in by_site.items()
    ]
    base = _most_common(sites, formats=formats, parameters=parameters, default=narrowest)
    if not layers_only:
        sites += [SitePlan(site=site, fmt=base) for site in parameters if site not in by_site]
    return Proposal(
        base_format=base,
        sites=tuple(replace(each, num_parameters=parameters.get(each.site, 0)) for each in sites),
        loss=sensitivity.loss,
        scaling=scaling,
        first_scale=_first_scale(units, narrowest),
    )


def _check_measured(sensitivity: Sensitivity, formats: Sequence[str]) -> None:
    missing = [fmt for fmt in formats if fmt not in sensitivity.formats]
    if missing or not formats:
        raise PlanError.explain(
            f"The step was not measured for {', '.join(missing)}." if missing else "No formats are given.",
            why=f"it was measured for {', '.join(sensitivity.formats)}.",
            fix="measure it again with these formats.",
        )
    if not any(_is_planned(unit) for unit in site_ops(sensitivity)):
        raise PlanError.explain(
            "The measured step rounds nothing.",
            why="a narrow format would not change the result of any op of the model.",
            fix="check that the training calls its model in that step.",
        )


def _is_planned(unit: SiteOp) -> bool:
    """Whether a recipe applies to it: not to what the loop computes, nor to further models (`Critic:0`)."""
    return unit.site != "<loop>" and ":" not in unit.site


def _why_scaled(units: Sequence[SiteOp], fmt: str) -> str | None:
    """Return why the loss must be scaled: gradients vanish at many of the ops; None if they do not."""
    with_gradient = [unit for unit in units if unit.has_gradient]
    risks = [risk_of(unit, fmt) for unit in with_gradient]
    num_lost = sum(risk is not None and risk.kind == "underflow" for risk in risks)
    if num_lost <= _GLOBAL_SHARE * len(with_gradient):
        return None
    largest = _largest_gradient(units, fmt)
    return f"gradients vanish in {fmt} at {num_lost} of {len(with_gradient)} ops; the largest of all is {largest:.3g}"


def _loss_scale(units: Sequence[SiteOp], fmt: str) -> float:
    """Return the scale at which a dynamic one settles: the largest gradient is well within the format."""
    largest = _largest_gradient(units, fmt)
    room = format_named(fmt).largest / HEADROOM / largest if largest else 1.0
    return min(_LARGEST_SCALE, 2.0 ** math.floor(math.log2(max(1.0, room))))


def _first_scale(units: Sequence[SiteOp], fmt: str) -> float:
    """Return where a dynamic scale starts: at the default, or lower if the largest gradient would overflow with it."""
    return min(_USUAL_SCALE, _loss_scale(units, fmt)) if _largest_gradient(units, fmt) else _USUAL_SCALE


def _largest_gradient(units: Sequence[SiteOp], fmt: str) -> float:
    gradients = (effect.gradient_absmax or 0.0 for unit in units for effect in unit.effects.get(fmt, ()))
    return max(gradients, default=0.0)


def _reason(unit: SiteOp, choice: FormatChoice, risks: Mapping[str, Risk | None], target: Target) -> str | None:
    """Return why an op did not take the narrowest format."""
    bits = _width(choice.fmt)
    narrower = [fmt for fmt in risks if _width(fmt) < bits]
    if not narrower:
        return None
    found = [risk.text for fmt in narrower if (risk := risks[fmt])]
    if found:
        return f"{unit.op} {found[-1]}"
    fmt = max(narrower, key=_width)
    moved = math.sqrt(unit.squared_change(fmt))
    why = "and the budget allows more" if target.is_budget else f"the target is {target}"
    return f"{unit.op} would change the loss by {moved:.2g} in {fmt}; {why}"


def _site_plan(
    site: str,
    units: Sequence[SiteOp],
    chosen: Mapping[str, FormatChoice],
    reasons: Mapping[str, str | None],
    *,
    whole: bool,
) -> SitePlan:
    """Combine the formats of a site's ops; `whole` gives the site one format, the widest of them."""
    formats = {unit.op: chosen[unit.key].fmt for unit in units}
    # Parameters are stored in the format of their site, so it is that of the ops that use them.
    weighty = [formats[unit.op] for unit in units if unit.has_weights]
    fmt = max(weighty, key=_width) if weighty else min(formats.values(), key=_width)
    fmt = max(formats.values(), key=_width) if whole else fmt
    bits = _width(fmt)
    plan = SitePlan(
        site=site,
        fmt=fmt,
        ops={op: each for op, each in formats.items() if _width(each) > bits},
        reasons=tuple(reason for unit in units if (reason := reasons[unit.key])),
        all_ops=tuple(formats),
    )
    final = [(unit, plan.ops.get(unit.op, fmt)) for unit in units]
    return replace(
        plan,
        loss_change=math.sqrt(math.fsum(unit.squared_change(fmt) for unit, fmt in final)),
        num_elements=sum(unit.num_elements for unit in units),
        num_bits=math.fsum(unit.num_bits(fmt) for unit, fmt in final),
    )


def _is_worth_ops(site: str, units: Sequence[SiteOp]) -> bool:
    """Whether ops of a site should have their own formats: its parameters stay narrow, or only its ops have names.

    Otherwise a whole site is better: no device computes single ops of a narrow site natively.
    """
    return site == MODEL or any(unit.has_weights for unit in units)


def _most_common(
    sites: Sequence[SitePlan], *, formats: Sequence[str], parameters: Mapping[str, int], default: str
) -> str:
    """Return the allowed format that most parameters take."""
    counts = dict.fromkeys(formats, 0)
    for each in sites:
        if each.fmt in counts:
            counts[each.fmt] += parameters.get(each.site, 0) + 1
    best = max(counts.values())
    return next(fmt for fmt in (default, *formats) if counts[fmt] == best)


def _width(fmt: str) -> float:
    return format_named(fmt).num_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Why an op cannot take a format."""

    kind: RiskKind
    text: str
    """`overflow: its result reaches 2.9e+06, the largest fp16 number is 65504`."""


def risk_of(unit: SiteOp, fmt: str, *, loss_scale: float = 1.0) -> Risk | None:
    """Return the most serious risk of a format at an op; None if there is none."""
    effects = unit.effects.get(fmt, ())
    # A format with its own scales does not overflow: large values are only less accurate.
    has_scales = isinstance(format_named(fmt), BlockFormat | ScaledBlocks)
    too_large = None if has_scales else _overflow_risk(effects, fmt) or _headroom_risk(effects, fmt)
    return too_large or _precision_risk(effects, fmt) or _underflow_risk(effects, fmt, loss_scale=loss_scale)


def _min_gradient_db(fmt: str) -> float:
    """Return how accurate a gradient must be: few bits with their own scales are noisy, which is no underflow."""
    return _MIN_VALUE_DB if isinstance(format_named(fmt), BlockFormat | ScaledBlocks) else _MIN_GRADIENT_DB


def _overflow_risk(effects: Iterable[LossEffect], fmt: str) -> Risk | None:
    largest = format_named(fmt).largest
    for effect in effects:
        if effect.value.overflow > 0:
            text = f"overflow: its {effect.part} reaches {effect.absmax:.3g}, the largest {fmt} number is {largest:g}"
            return Risk(kind="overflow", text=text)
        if effect.gradient is not None and effect.gradient.overflow > 0:
            reached = effect.gradient_absmax or 0.0
            return Risk(
                kind="overflow",
                text=f"overflow: its gradient reaches {reached:.3g}, the largest {fmt} number is {largest:g}",
            )
    return None


def _headroom_risk(effects: Iterable[LossEffect], fmt: str) -> Risk | None:
    largest = format_named(fmt).largest
    for effect in effects:
        # Weights do not grow by that factor; what is computed from many of them may.
        if effect.part != "weight" and effect.absmax * HEADROOM > largest:
            text = (
                f"near overflow: its {effect.part} reaches {effect.absmax:.3g}, the largest {fmt} number is {largest:g}"
            )
            return Risk(kind="headroom", text=text)
    return None


def _precision_risk(effects: Iterable[LossEffect], fmt: str) -> Risk | None:
    for effect in effects:
        if effect.value.snr_db < _MIN_VALUE_DB and effect.gradient is not None:
            left = f"the signal-to-noise ratio is {effect.value.snr_db:.0f} dB"
            text = f"underflow: of its {effect.part} {_lost_share_text(effect.value)} in {fmt}; {left}"
            return Risk(kind="lost", text=text)
    return None


def _underflow_risk(effects: Iterable[LossEffect], fmt: str, *, loss_scale: float) -> Risk | None:
    smallest = format_named(fmt).smallest_normal
    for effect in effects:
        gradient, reached = effect.gradient, effect.gradient_absmax or 0.0
        if gradient is None or gradient.snr_db >= _min_gradient_db(fmt):
            continue
        if not gradient.underflow and not gradient.subnormal:
            continue
        if loss_scale > 1 and reached * loss_scale >= smallest * _SCALED_ROOM:
            continue
        text = f"underflow: of its gradients {_lost_share_text(gradient)} in {fmt}; the largest is {reached:.3g}"
        return Risk(kind="underflow", text=text)
    return None


def _lost_share_text(rounded: Rounded) -> str:
    """Describe which share of some numbers a format loses.

    >>> _lost_share_text(Rounded(num_elements=4, overflow=0, underflow=0.25, subnormal=0.5, ulps=0, snr_db=3))
    '25 % become 0 and 50 % subnormal'
    """
    words = [
        f"{100 * share:.3g} % {word}"
        for share, word in ((rounded.underflow, "become 0"), (rounded.subnormal, "subnormal"))
        if share
    ]
    return " and ".join(words) or "much"
