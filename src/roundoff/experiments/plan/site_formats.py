"""The value of a plan: which site takes which format, why, and what that is expected to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from roundoff.formats import format_named
from roundoff.sensitivity.effects import Effect, Sensitivity

# == The smallest things that have a format of their own: all calls of one function at one site.

WIDE = "fp32"
MODEL_SITE = "<model>"
"""The code of the model itself, outside of all its parts."""
NORM_OPS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOp:
    """All calls of one function at one site, and what each format would do to them."""

    site: str
    op: str
    effects: Mapping[str, tuple[Effect, ...]]
    """By format."""

    @property
    def key(self) -> str:
        """What an override calls it: `blocks.1.attn:softmax`."""
        return f"{self.site}:{self.op}"

    @property
    def has_weights(self) -> bool:
        """Whether it computes with parameters: these are stored in the format of the site."""
        return any(effect.part == "weight" for effect in self._any)

    @property
    def has_gradient(self) -> bool:
        """Whether gradients come back through it."""
        return any(effect.gradient is not None for effect in self._any)

    @property
    def num_elements(self) -> int:
        """Of its weights and results; what enters it is counted where it is made."""
        return sum(effect.value.num_elements for effect in self._any if effect.part != "input")

    def squared_change(self, fmt: str) -> float:
        """Return the square of what the format moves the loss by; wide moves nothing.

        Squares, because the errors of different tensors have nothing to do with each other: their squares add up.
        """
        return math.fsum(effect.loss_change**2 for effect in self.effects.get(fmt, ()) if _is_lost_here(effect))

    def num_bits(self, fmt: str) -> float:
        """Return what its weights and results take in a format."""
        return self.num_elements * format_named(fmt).num_bits

    @property
    def _any(self) -> tuple[Effect, ...]:
        return next(iter(self.effects.values()), ())


def _is_lost_here(effect: Effect) -> bool:
    """Whether it is known that rounding here loses something: what narrow ops have made, they have rounded before."""
    if not math.isfinite(effect.loss_change):
        return False  # something overflows, and the range of numbers decides, not the loss
    return not effect.rounded_by or not all(effect.rounded_by)


def site_ops(sensitivity: Sensitivity) -> tuple[SiteOp, ...]:
    """Return the units of a measured step, in its order."""
    found: dict[tuple[str, str], dict[str, list[Effect]]] = {}
    for effect in sensitivity.effects:
        found.setdefault((effect.site, effect.op), {}).setdefault(effect.fmt, []).append(effect)
    return tuple(
        SiteOp(site=site, op=op, effects={fmt: tuple(effects) for fmt, effects in formats.items()})
        for (site, op), formats in found.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlan:
    """The format of one site, and why it is not narrower."""

    site: str
    fmt: str
    ops: Mapping[str, str] = field(default_factory=dict)
    """Ops of the site that take another, wider format."""
    reasons: tuple[str, ...] = ()
    num_parameters: int = 0
    loss_change: float = 0.0
    """What its formats move the loss by."""
    num_elements: int = 0
    """Of its weights and results."""
    num_bits: float = 0.0
    """What these take."""
    all_ops: tuple[str, ...] = ()

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm, whose parameters a recipe keeps in a format of their own."""
        return any(op in NORM_OPS for op in self.all_ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Which site takes which format, and what that is expected to do."""

    base_format: str
    """What a site takes that nothing speaks against."""
    sites: tuple[SitePlan, ...]
    """In the order of the step; then those that hold parameters and round nothing."""
    loss: float
    scaling: str | None = None
    """Why the loss has to be scaled; None: it need not be."""
    first_scale: float = 2.0**16
    """Where a loss scale begins, if there is one: steps that it would skip are no steps of a short trial."""

    @property
    def loss_change(self) -> float:
        """By how much the formats together move the loss of one step, to first order."""
        return math.hypot(*(each.loss_change for each in self.sites))

    @property
    def mean_bits(self) -> float:
        """Of weights and results."""
        return math.fsum(each.num_bits for each in self.sites) / max(1, sum(each.num_elements for each in self.sites))

    @property
    def narrow_parameters(self) -> float:
        """Share of the parameters that are in sites narrower than fp32, norms left out."""
        counted = [each for each in self.sites if not each.is_norm]
        total = sum(each.num_parameters for each in counted)
        return sum(each.num_parameters for each in counted if each.fmt != WIDE) / total if total else 1.0

    @property
    def wide(self) -> tuple[SitePlan, ...]:
        """The sites at which something is wider than the base format."""
        base = format_named(self.base_format).num_bits
        return tuple(each for each in self.sites if each.ops or format_named(each.fmt).num_bits > base)

    def with_wide(self, sites: Iterable[str], *, reason: str) -> Self:
        """Return the proposal with these sites in fp32, too."""
        chosen = frozenset(sites)
        return replace(
            self,
            sites=tuple(_widen_site(each, reason) if each.site in chosen else each for each in self.sites),
        )


def _widen_site(each: SitePlan, reason: str) -> SitePlan:
    return replace(
        each,
        fmt=WIDE,
        ops={},
        reasons=(*each.reasons, reason),
        loss_change=0.0,
        num_bits=each.num_elements * format_named(WIDE).num_bits,
    )
