"""What speaks against a format at one op, whatever the loss says: overflow, and gradients that vanish."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from roundoff.experiments.plan_units import Unit
from roundoff.formats import BlockFormat, format_named
from roundoff.sensitivity.sensitivity import Effect, Rounded

RiskKind = Literal["overflow", "headroom", "lost", "underflow"]

HEADROOM = 4.0
"""Values grow while a net trains: one that comes as near as this to the largest number is taken to overflow later."""
_LEAST_VALUE_DB = 10.0
"""A tensor whose rounding error is a third of it (in length) is not the same tensor any more."""
_LEAST_GRADIENT_DB = 20.0
"""A gradient that is a tenth off (in length), because of what became 0 or subnormal, no longer says where to go."""
_SCALED_ROOM = 2.0**6
"""With a loss scale a gradient is safe if its largest number is so far above the smallest normal one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Why an op cannot take a format."""

    kind: RiskKind
    text: str
    """`overflow: its result reaches 2.9e+06, fp16 ends at 65504`."""


def risk_of(unit: Unit, fmt: str, *, loss_scale: float = 1.0) -> Risk | None:
    """Return what speaks against a format at a unit, the gravest first; None if nothing does."""
    effects = unit.effects.get(fmt, ())
    # In a format with scales of its own what is too large is only less exact.
    has_scales = isinstance(format_named(fmt), BlockFormat)
    too_large = None if has_scales else _overflow(effects, fmt) or _headroom(effects, fmt)
    return too_large or _lost(effects, fmt) or _underflow(effects, fmt, loss_scale=loss_scale)


def _overflow(effects: Iterable[Effect], fmt: str) -> Risk | None:
    largest = format_named(fmt).largest
    for effect in effects:
        if effect.value.overflow > 0:
            text = f"overflow: its {effect.part} reaches {effect.absmax:.3g}, {fmt} ends at {largest:g}"
            return Risk(kind="overflow", text=text)
        if effect.gradient is not None and effect.gradient.overflow > 0:
            reached = effect.gradient_absmax or 0.0
            return Risk(
                kind="overflow", text=f"overflow: its gradient reaches {reached:.3g}, {fmt} ends at {largest:g}"
            )
    return None


def _headroom(effects: Iterable[Effect], fmt: str) -> Risk | None:
    largest = format_named(fmt).largest
    for effect in effects:
        # A weight does not grow by that much; what is computed from many of them does.
        if effect.part != "weight" and effect.absmax * HEADROOM > largest:
            text = f"near overflow: its {effect.part} reaches {effect.absmax:.3g}, {fmt} ends at {largest:g}"
            return Risk(kind="headroom", text=text)
    return None


def _lost(effects: Iterable[Effect], fmt: str) -> Risk | None:
    for effect in effects:
        if effect.value.snr_db < _LEAST_VALUE_DB and effect.gradient is not None:
            left = f"{effect.value.snr_db:.0f} dB are left"
            text = f"underflow: of its {effect.part} {_share(effect.value)} in {fmt}; {left}"
            return Risk(kind="lost", text=text)
    return None


def _underflow(effects: Iterable[Effect], fmt: str, *, loss_scale: float) -> Risk | None:
    smallest = format_named(fmt).smallest_normal
    for effect in effects:
        gradient, reached = effect.gradient, effect.gradient_absmax or 0.0
        if gradient is None or gradient.snr_db >= _LEAST_GRADIENT_DB:
            continue
        if not gradient.underflow and not gradient.subnormal:
            continue
        if loss_scale > 1 and reached * loss_scale >= smallest * _SCALED_ROOM:
            continue
        text = f"underflow: of its gradients {_share(gradient)} in {fmt}; the largest is {reached:.3g}"
        return Risk(kind="underflow", text=text)
    return None


def _share(rounded: Rounded) -> str:
    """Say which share of some numbers a format loses.

    >>> _share(Rounded(num_elements=4, overflow=0, underflow=0.25, subnormal=0.5, ulps=0, snr_db=3))
    '25 % become 0 and 50 % subnormal'
    """
    words = [
        f"{100 * share:.3g} % {word}"
        for share, word in ((rounded.underflow, "become 0"), (rounded.subnormal, "subnormal"))
        if share
    ]
    return " and ".join(words) or "much"
