"""What rounding would do, op by op, and where the precision of a step is lost, site by site."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from roundoff.record.loop.sites import LOOP
from roundoff.runs import JsonValue
from roundoff.runs.files.plain_json import object_from

OpPart = Literal["input", "weight", "result"]
"""What is rounded: a tensor that enters a narrow site, a parameter that an op uses, or the result of an op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """What rounding some numbers to a format does to them."""

    num_elements: int
    overflow: float
    """The share of the finite numbers that become infinite, or the largest number of a format without infinity."""
    underflow: float
    """The share of the nonzero numbers that become 0."""
    subnormal: float
    """The share of the nonzero numbers that become subnormal, and so lose bits."""
    ulps: float
    """The mean error in units of the format's eps, relative to each number."""
    snr_db: float
    """The signal-to-noise ratio: 10 log10(sum x^2 / sum (round(x) - x)^2); infinite if nothing is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEffect:
    """What rounding one tensor of one op to one format does."""

    site: str
    op: str
    """The function of torch as a recipe names it: `softmax`, `linear`."""
    part: OpPart
    fmt: str
    loss_change: float
    """The change of the loss if nothing else is rounded: the error that this introduces times the gradient, plus its
    share of what this first order misses of the effect of its site."""
    value: Rounded
    gradient: Rounded | None
    """The effect on dL/dy, which is rounded in the backward pass; None if there was no gradient."""
    absmax: float
    gradient_absmax: float | None
    part_of_all: float = 0.0
    """Its part of the change of the loss if everything is rounded; these add up, to third order."""
    rounded_by: tuple[tuple[str, ...], ...] = ()
    """For an input, groups of ops (`blocks.0.mlp:gelu`): if one op of each group takes the format, the input is already
    rounded, and nothing is lost here. An empty group means an input from outside the model."""

    @property
    def key(self) -> str:
        """The op as an override names it: `blocks.1.attn:softmax`."""
        return f"{self.site}:{self.op}"

    def counts(self, formats: Mapping[str, str]) -> bool:
        """Whether something is lost here if sites, or single ops of them, take these formats."""
        if _format_of(self.key, formats) != self.fmt:
            return False
        if not self.rounded_by:
            return True
        return not all(any(_format_of(key, formats) == self.fmt for key in group) for group in self.rounded_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One step of an fp32 training, and what rounding each of its tensors would do."""

    step: int
    loss: float
    formats: tuple[str, ...]
    effects: tuple[LossEffect, ...]
    """In the order in which the step computes them."""
    num_parameters: Mapping[str, int]
    """The parameters of each site itself, without the sites inside it."""
    narrow_losses: Mapping[str, float] = field(default_factory=dict)
    """By format, the loss of the same step with every site of the model rounded; without formats in which something
    overflows."""
    missed_by_ops: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By format and key, what must be added to the effects of an op if it alone is narrow, not its whole site."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites where something would be rounded, in the order of the step."""
        return tuple(dict.fromkeys(effect.site for effect in self.effects))

    def of(self, fmt: str, *, site: str | None = None) -> tuple[LossEffect, ...]:
        """Return the effects of one format, at one site or everywhere."""
        return tuple(each for each in self.effects if each.fmt == fmt and site in (None, each.site))

    def loss_change(self, fmt: str, *, site: str | None = None) -> float:
        """Return the change of the loss if one site, or all of them, are rounded.

        A site is its own code, without the sites inside it.
        """
        return self.loss_change_with(dict.fromkeys(self.sites if site is None else (site,), fmt))

    def loss_change_with(self, formats: Mapping[str, str]) -> float:
        """Return the change of the loss if sites, or single ops of them, take formats.

        Keys are `blocks.1.attn` (its own code, without the sites inside it) or `blocks.1.attn:softmax`; everything else
        is not rounded. A tensor that several of them would round counts once.
        """
        missed = (self.missed_by_ops.get(fmt, {}).get(key, 0.0) for key, fmt in formats.items())
        return math.fsum([*(each.loss_change for each in self.effects if each.counts(formats)), *missed])

    def within(self, site: str) -> tuple[str, ...]:
        """Return a site and the sites inside it, all of which an override covers."""
        return tuple(each for each in self.sites if each == site or each.startswith(f"{site}."))

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return asdict(self)

    @classmethod
    def from_object(cls, data: Mapping[str, Any]) -> Self:
        """Return the value that `to_object` wrote."""
        return object_from(cls, data)


def most_suspicious(effects: Sequence[LossEffect]) -> float:
    """Return how suspicious these effects are: overflow counts most, then lost gradients, then the loss."""
    overflow = max((max(_share(e.value, "overflow"), _share(e.gradient, "overflow")) for e in effects), default=0.0)
    lost = max((_share(e.gradient, "underflow") for e in effects), default=0.0)
    return 1e6 * (overflow > 0) + 1e3 * lost + min(1e3, sum(abs(e.loss_change) for e in effects))


def _format_of(key: str, formats: Mapping[str, str]) -> str | None:
    return formats.get(key) or formats.get(key.rpartition(":")[0])


def _share(rounded: Rounded | None, name: str) -> float:
    return 0.0 if rounded is None else float(getattr(rounded, name))


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
    by_site: dict[str, list[LossEffect]] = {}
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
    sensitivity: Sensitivity, fmt: str, site: str, *, part: float, share: float, effects: Sequence[LossEffect]
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


def _part(effects: Iterable[LossEffect]) -> float:
    return math.fsum(effect.part_of_all for effect in effects)


def _largest(shares: Iterable[float]) -> float:
    return max(shares, default=0.0)


def _min_snr(rounded: Sequence[Rounded]) -> float:
    return min((each.snr_db for each in rounded), default=math.inf)
