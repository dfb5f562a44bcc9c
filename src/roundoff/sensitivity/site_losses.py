"""Where the precision of a step is lost: the contribution of each site to the error of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roundoff.record.loop.sites import LOOP
from roundoff.sensitivity.effects import Effect, Rounded, Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLoss:
    """What is lost in one site's own code in a format."""

    site: str
    part: float
    """Its part of the change of the loss if every site is narrow."""
    alone: float
    """The change of the loss if only this site is narrow."""
    share: float
    """Its share of the parts of all sites, by size."""
    overflow: float
    """The largest share of a tensor, or of a gradient, that overflows."""
    gradient_underflow: float
    """The largest share of a gradient that becomes 0."""
    snr_db: float
    """The signal-to-noise ratio of the most affected tensor."""
    gradient_snr_db: float | None
    """The signal-to-noise ratio of the most affected gradient; None if there was none."""
    worst_op: str
    """The op with the largest part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionLoss:
    """Where the precision of a step is lost in a format: the sites by the size of their part, and their sum."""

    fmt: str
    step: int
    loss: float
    narrow_loss: float | None
    """The loss of the step computed with every site narrow; None if that was not possible."""
    sites: tuple[SiteLoss, ...]

    @property
    def sum(self) -> float:
        """The sum of the parts."""
        return math.fsum(each.part for each in self.sites)

    @property
    def measured(self) -> float | None:
        """The real change of the loss."""
        return None if self.narrow_loss is None else self.narrow_loss - self.loss


def precision_loss(sensitivity: Sensitivity, fmt: str) -> PrecisionLoss:
    """Add up by site where the precision of a step is lost in one format.

    What the loop itself computes is left out, because no recipe makes it narrow. If the step could not be computed with
    every site narrow, the part of a site is its effect alone.
    """
    narrow_loss = sensitivity.narrow_losses.get(fmt)
    by_site: dict[str, list[Effect]] = {}
    for effect in sensitivity.of(fmt):
        by_site.setdefault(effect.site, []).append(effect)
    parts = {
        site: _part(effects) if narrow_loss is not None else sensitivity.loss_change(fmt, site=site)
        for site, effects in by_site.items()
        if site != LOOP and (narrow_loss is None or any(effect.part_of_all for effect in effects))
    }
    size = math.fsum(map(abs, parts.values()))
    sites = [
        _site_loss(sensitivity, fmt, site, part=part, share=abs(part) / size if size else 0.0, effects=by_site[site])
        for site, part in parts.items()
    ]
    return PrecisionLoss(
        fmt=fmt,
        step=sensitivity.step,
        loss=sensitivity.loss,
        narrow_loss=narrow_loss,
        sites=tuple(sorted(sites, key=lambda each: -each.share)),
    )


def _site_loss(
    sensitivity: Sensitivity, fmt: str, site: str, *, part: float, share: float, effects: Sequence[Effect]
) -> SiteLoss:
    gradients = [effect.gradient for effect in effects if effect.gradient is not None]
    values = [effect.value for effect in effects]
    by_op: dict[str, float] = {}
    for effect in effects:
        by_op[effect.op] = by_op.get(effect.op, 0.0) + abs(effect.part_of_all or effect.loss_change)
    return SiteLoss(
        site=site,
        part=part,
        alone=sensitivity.loss_change(fmt, site=site),
        share=share,
        overflow=_largest(each.overflow for each in [*values, *gradients]),
        gradient_underflow=_largest(each.underflow for each in gradients),
        snr_db=_min_snr(values),
        gradient_snr_db=_min_snr(gradients) if gradients else None,
        worst_op=max(by_op, key=lambda op: by_op[op]),
    )


def _part(effects: Iterable[Effect]) -> float:
    return math.fsum(effect.part_of_all for effect in effects)


def _largest(shares: Iterable[float]) -> float:
    return max(shares, default=0.0)


def _min_snr(rounded: Sequence[Rounded]) -> float:
    return min((each.snr_db for each in rounded), default=math.inf)
