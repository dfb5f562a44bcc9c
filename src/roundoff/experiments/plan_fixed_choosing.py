"""Widths and range methods for fixed point, tensor by tensor, by what they do to the loss of one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from roundoff.experiments.plan_assignment import Choice, assign
from roundoff.experiments.plan_fixed import FixedChoice, FixedPlan, Kind
from roundoff.experiments.plan_target import Target
from roundoff.experiments.plan_training import StandingStep
from roundoff.kernels.fixed_point import quantize_fixed
from roundoff.kernels.fixed_rule import RANGES, FixedRule, Range
from roundoff.precision.sites import is_norm, site_of

_MORE_BITS: Final = (0, 2, 4, 8)
_MOST_BITS: Final = 16
_LEAST_GRADIENT_DB: Final = 15.0
"""Rounding a gradient moves no loss of this step; it takes so many bits that it keeps its direction."""


def choose_fixed(standing: StandingStep, *, bits: int, target: Target) -> FixedPlan:
    """Return bits and ranges for every module: the range that hurts least, and more bits until the target is met."""
    seen, loss = _look(standing)
    widths = sorted({min(bits + more, max(bits, _MOST_BITS)) for more in _MORE_BITS})
    forward = [each for each in seen if each.kind in ("weight", "activation")]
    ranges = [{width: _best_range(each, width) for width in widths} for each in forward]
    choices = [
        [Choice(fmt=str(width), squared_change=found[width][1], num_bits=each.num_elements * width) for width in widths]
        for each, found in zip(forward, ranges, strict=True)
    ]
    picked = assign(choices, target=target, loss=loss)
    chosen = [
        FixedChoice(
            site=each.site,
            kind=each.kind,
            bits=int(choice.fmt),
            range=found[int(choice.fmt)][0],
            error=math.sqrt(choice.squared_change),
        )
        for each, found, choice in zip(forward, ranges, picked, strict=True)
    ]
    backward = [_gradient_choice(each, widths) for each in seen if each.kind in ("gradient", "error")]
    return FixedPlan(
        bits=bits,
        choices=(*chosen, *backward),
        loss=loss,
        loss_change=math.sqrt(math.fsum(choice.squared_change for choice in picked)),
    )


@dataclass(slots=True, kw_only=True)
class _Seen:
    """The tensors of one kind at one site, with dL/dx for those that the forward uses."""

    site: str
    kind: Kind
    pairs: list[tuple[Tensor, Tensor | None]]

    @property
    def num_elements(self) -> int:
        return sum(x.numel() for x, _ in self.pairs)


def _look(standing: StandingStep) -> tuple[list[_Seen], float]:
    """Run the step once, and return what fixed point would quantize in it, and its loss."""
    outputs: dict[str, list[Tensor]] = {}
    made: list[Tensor] = []

    def note(name: str, module: nn.Module, args: object, output: object) -> None:
        # What a module inside has made passes as it is, and so does a loss.
        if isinstance(output, Tensor) and output.requires_grad and output.dim() and not any(x is output for x in made):
            output.retain_grad()
            made.append(output)
            outputs.setdefault(name, []).append(output)

    hooks = [
        module.register_forward_hook(partial(note, site_of(name))) for name, module in standing.model.named_modules()
    ]
    standing.model.zero_grad()
    try:
        loss = float(standing.run())
    finally:
        for hook in hooks:
            hook.remove()
    seen = [*_parameters(standing.model), *_outputs(outputs)]
    standing.model.zero_grad()
    return seen, loss


def _parameters(model: nn.Module) -> Iterator[_Seen]:
    for name, module in model.named_modules():
        named = [] if is_norm(module) else module.named_parameters(recurse=False)
        weights = [(x.detach(), x.grad) for own, x in named if x.grad is not None and "bias" not in own]
        if weights:
            yield _Seen(site=site_of(name), kind="weight", pairs=list(weights))
            yield _Seen(site=site_of(name), kind="gradient", pairs=[(gradient, None) for _, gradient in weights])


def _outputs(outputs: Mapping[str, Sequence[Tensor]]) -> Iterator[_Seen]:
    for site, tensors in outputs.items():
        with_gradient = [(x.detach(), x.grad) for x in tensors if x.grad is not None]
        if with_gradient:
            yield _Seen(site=site, kind="activation", pairs=list(with_gradient))
            yield _Seen(site=site, kind="error", pairs=[(gradient, None) for _, gradient in with_gradient])


def _best_range(seen: _Seen, bits: int) -> tuple[Range, float]:
    """Return the range that moves the loss least, and the square of that.

    <g, d> is what it moves this loss by; the sum of (g d)^2 beside it is what chance may add in other steps.
    """
    errors: dict[Range, float] = {}
    for name in RANGES:
        products = [_rounding_error(x, bits, name) * gradient for x, gradient in seen.pairs if gradient is not None]
        moved = math.fsum(float(each.double().sum()) for each in products)
        errors[name] = moved**2 + math.fsum(float(each.double().square().sum()) for each in products)
    best = min(RANGES, key=errors.__getitem__)
    return best, errors[best]


def _gradient_choice(seen: _Seen, widths: Sequence[int]) -> FixedChoice:
    """Return the fewest bits, and the range, with which a gradient keeps its direction."""
    length = math.fsum(float(x.double().square().sum()) for x, _ in seen.pairs)
    for bits in widths:
        errors = {
            name: math.fsum(float(_rounding_error(x, bits, name).double().square().sum()) for x, _ in seen.pairs)
            for name in RANGES
        }
        best = min(RANGES, key=errors.__getitem__)
        relative = errors[best] / length if length else 0.0
        if relative <= 10 ** (-_LEAST_GRADIENT_DB / 10):
            break
    return FixedChoice(site=seen.site, kind=seen.kind, bits=bits, range=best, error=math.sqrt(relative))


def _rounding_error(x: Tensor, bits: int, name: Range) -> Tensor:
    scale = torch.zeros((), device=x.device)
    return quantize_fixed(x, scale, FixedRule(num_bits=bits, range=name), follow="data").values - x
