"""The ops of a measured step at their sites, the format that each takes, and why."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target
from roundoff.formats import format_named
from roundoff.sensitivity.effects import LossEffect, Sensitivity

WIDE = "fp32"
NORM_OPS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOp:
    """All calls of one function at one site, the smallest thing with its own format, and the effect of each format."""

    site: str
    op: str
    effects: Mapping[str, tuple[LossEffect, ...]]
    """By format."""

    @property
    def key(self) -> str:
        """Its name in an override: `blocks.1.attn:softmax`."""
        return f"{self.site}:{self.op}"

    @property
    def has_weights(self) -> bool:
        """Whether it uses parameters, which are stored in the format of the site."""
        return any(effect.part == "weight" for effect in self._any)

    @property
    def has_gradient(self) -> bool:
        """Whether it has gradients."""
        return any(effect.gradient is not None for effect in self._any)

    @property
    def num_elements(self) -> int:
        """The elements of its weights and results; its inputs are counted where they are computed."""
        return sum(effect.value.num_elements for effect in self._any if effect.part != "input")

    def squared_change(self, fmt: str) -> float:
        """Return the square of the change of the loss in a format; fp32 changes nothing.

        The errors of different tensors are independent, so their squares add up.
        """
        return math.fsum(effect.loss_change**2 for effect in self.effects.get(fmt, ()) if _is_lost_here(effect))

    def num_bits(self, fmt: str) -> float:
        """Return the bits of its weights and results in a format."""
        return self.num_elements * format_named(fmt).num_bits

    @property
    def _any(self) -> tuple[LossEffect, ...]:
        return next(iter(self.effects.values()), ())


def _is_lost_here(effect: LossEffect) -> bool:
    """Whether rounding here certainly loses something: results of narrow ops are already rounded."""
    if not math.isfinite(effect.loss_change):
        return False  # something overflows, which the risks decide about, not the loss
    return not effect.rounded_by or not all(effect.rounded_by)


def site_ops(sensitivity: Sensitivity) -> tuple[SiteOp, ...]:
    """Return the ops of a measured step with their sites, in the order of the step."""
    found: dict[tuple[str, str], dict[str, list[LossEffect]]] = {}
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
    """How much its formats change the loss."""
    num_elements: int = 0
    """The elements of its weights and results."""
    num_bits: float = 0.0
    """The bits that these take."""
    all_ops: tuple[str, ...] = ()

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm, whose parameters have their own format in a recipe."""
        return any(op in NORM_OPS for op in self.all_ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Which site takes which format, and the expected effect."""

    base_format: str
    """The format of every site that passes all checks."""
    sites: tuple[SitePlan, ...]
    """In the order of the step; then those that have parameters but round nothing."""
    loss: float
    scaling: str | None = None
    """Why the loss must be scaled; None if it need not be."""
    first_scale: float = 2.0**16
    """Where a loss scale starts, if there is one: a short trial cannot afford to skip steps."""

    @property
    def loss_change(self) -> float:
        """By how much the formats together change the loss of one step, to first order."""
        return math.hypot(*(each.loss_change for each in self.sites))

    @property
    def mean_bits(self) -> float:
        """The mean bits of weights and results."""
        return math.fsum(each.num_bits for each in self.sites) / max(1, sum(each.num_elements for each in self.sites))

    @property
    def narrow_parameters(self) -> float:
        """The share of the parameters that are in sites narrower than fp32, without norms."""
        counted = [each for each in self.sites if not each.is_norm]
        total = sum(each.num_parameters for each in counted)
        return sum(each.num_parameters for each in counted if each.fmt != WIDE) / total if total else 1.0

    @property
    def wide(self) -> tuple[SitePlan, ...]:
        """The sites where something is wider than the base format."""
        base = format_named(self.base_format).num_bits
        return tuple(each for each in self.sites if each.ops or format_named(each.fmt).num_bits > base)

    def with_wide(self, sites: Iterable[str], *, reason: str) -> Self:
        """Return the proposal with these sites in fp32 as well."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """One format that an op may take, and its cost."""

    fmt: str
    squared_change: float
    num_bits: float


def format_choices(unit: SiteOp, allowed: Sequence[str]) -> tuple[FormatChoice, ...]:
    """Return what an op may take, from narrow to wide, the last being fp32; of equally wide formats only the best."""
    formats = sorted({*allowed, WIDE}, key=lambda fmt: (format_named(fmt).num_bits, unit.squared_change(fmt)))
    best = {format_named(fmt).num_bits: fmt for fmt in reversed(formats)}
    kept = [fmt for fmt in formats if best[format_named(fmt).num_bits] == fmt]
    return tuple(
        FormatChoice(fmt=fmt, squared_change=unit.squared_change(fmt), num_bits=unit.num_bits(fmt)) for fmt in kept
    )


def choose_formats(choices: Sequence[Sequence[FormatChoice]], *, target: Target, loss: float) -> list[FormatChoice]:
    """Return one choice for every op, so that the target is met.

    For a loss, everything starts as narrow as allowed, and what removes most error per bit is widened until the rest
    is small enough. For a budget, everything starts wide and is narrowed in the same way.

    Raises:
        PlanError: even the narrowest allowed formats exceed the budget.
    """
    if target.loss is not None:
        return _widen_until(choices, limit=(target.loss * abs(loss)) ** 2)
    widest = math.fsum(each[-1].num_bits for each in choices)
    budget = widest * (target.bits or 0.0) / format_named(WIDE).num_bits
    if target.memory_bytes is not None:
        budget = target.memory_bytes * 8.0
    return _narrow_until(choices, budget=budget)


def _widen_until(choices: Sequence[Sequence[FormatChoice]], *, limit: float) -> list[FormatChoice]:
    places = [0] * len(choices)
    moves = [_best_widening(choices[unit], 0, unit) for unit in range(len(choices))]
    heap = [move for move in moves if move is not None]
    heapq.heapify(heap)
    while heap and math.fsum(each[place].squared_change for each, place in zip(choices, places, strict=True)) > limit:
        _, unit, to = heapq.heappop(heap)
        places[unit] = to
        if following := _best_widening(choices[unit], to, unit):
            heapq.heappush(heap, following)
    return [each[place] for each, place in zip(choices, places, strict=True)]


def _narrow_until(choices: Sequence[Sequence[FormatChoice]], *, budget: float) -> list[FormatChoice]:
    # What takes no memory starts narrow: narrowing it would save no bits, so it would never be narrowed.
    places = [len(each) - 1 if each[-1].num_bits else 0 for each in choices]
    heap = [move for unit, each in enumerate(choices) for move in _narrowings(each, places[unit], unit)]
    heapq.heapify(heap)
    bits = math.fsum(each[-1].num_bits for each in choices)
    least = math.fsum(each[0].num_bits for each in choices)
    if least > budget:
        raise PlanError.explain(
            f"The model does not fit into {budget / 8:.0f} bytes of weights and results.",
            why=f"with every op as narrow as allowed they take {least / 8:.0f} bytes; in fp32 {bits / 8:.0f}.",
            fix="allow narrower formats (--formats e4m3,bf16), or raise the budget.",
        )
    while bits > budget:
        _, unit, place, to = heapq.heappop(heap)
        if places[unit] != place:
            continue  # outdated: another move of this op came first
        bits -= choices[unit][place].num_bits - choices[unit][to].num_bits
        places[unit] = to
        for move in _narrowings(choices[unit], to, unit):
            heapq.heappush(heap, move)
    return [each[place] for each, place in zip(choices, places, strict=True)]


def _best_widening(each: Sequence[FormatChoice], place: int, unit: int) -> tuple[float, int, int] | None:
    """Return the step to a wider choice that removes most error per bit it adds."""
    now = each[place]
    steps = [
        (-(now.squared_change - each[to].squared_change) / max(each[to].num_bits - now.num_bits, 1.0), unit, to)
        for to in range(place + 1, len(each))
        if each[to].squared_change < now.squared_change
    ]
    return min(steps, default=None)


def _narrowings(each: Sequence[FormatChoice], place: int, unit: int) -> Iterator[tuple[float, int, int, int]]:
    """Yield the steps to narrower choices with the error that each adds per bit it saves."""
    now = each[place]
    for to in range(place):
        saved = now.num_bits - each[to].num_bits
        if saved > 0:
            yield (each[to].squared_change - now.squared_change) / saved, unit, place, to
