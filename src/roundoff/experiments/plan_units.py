"""The smallest things that have a format of their own: all calls of one function at one site."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from roundoff.formats import format_named
from roundoff.sensitivity.sensitivity import Effect, Sensitivity

WIDE = "fp32"
MODEL_SITE = "<model>"
"""The code of the model itself, outside of all its parts."""
NORM_OPS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
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


def units_of(sensitivity: Sensitivity) -> tuple[Unit, ...]:
    """Return the units of a measured step, in its order."""
    found: dict[tuple[str, str], dict[str, list[Effect]]] = {}
    for effect in sensitivity.effects:
        found.setdefault((effect.site, effect.op), {}).setdefault(effect.fmt, []).append(effect)
    return tuple(
        Unit(site=site, op=op, effects={fmt: tuple(effects) for fmt, effects in formats.items()})
        for (site, op), formats in found.items()
    )
