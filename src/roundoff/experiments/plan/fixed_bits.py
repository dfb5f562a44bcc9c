"""A plan in fixed point: the bits and the range of every tensor, chosen by what they do to the loss of one step."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor, nn

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.site_choices import FormatChoice, choose_formats
from roundoff.kernels.rounding_rules import RANGES, FixedRule, Range
from roundoff.kernels.scaled_fixed_point import quantize_fixed
from roundoff.precision.fixed import FixedPointSettings, TensorSetting
from roundoff.precision.recipe.fixed_point_settings import covers
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.site_formats import is_norm, site_of
from roundoff.train.config import TrainConfig
from roundoff.train.data import Batch
from roundoff.train.optimization import loss_of
from roundoff.train.ranks import joined_ranks, place_here
from roundoff.train.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedStep:
    """A model in training mode, and the batch of its next step."""

    model: nn.Module
    batch: Batch
    config: TrainConfig

    def run(self) -> Tensor:
        """Run forward and backward, leave gradients on the parameters, and return the loss."""
        loss = loss_of(
            self.model(self.batch.inputs),
            self.batch,
            label_smoothing=self.config.label_smoothing,
            reduction=self.config.loss_reduction,
        )
        torch.autograd.backward(loss)
        return loss.detach()


@contextlib.contextmanager
def pausing_training(config: TrainConfig, *, after: int) -> Iterator[PausedStep]:
    """Train in fp32 for `after` steps, in this process, and yield the next step.

    Raises:
        PlanError: the training has several ranks, or fewer steps.
    """
    if config.num_ranks > 1:
        raise PlanError.explain(
            "This plan does not work for a training on several ranks.",
            why="its step is run in one process.",
            fix="plan it with --procs 1; the recipe works for any number of ranks.",
        )
    alone = replace(config, recipe="fp32", loss_scale="recipe", runs=None, resume=None, workers=0)
    with joined_ranks(alone, place_here(alone)) as ranks:
        training = Trainer(alone, ranks)
        training.sampler.begin(epoch=0, first_step=0)
        batches: Iterator[Batch] = iter(training.batches)
        training.model.train()
        for _ in range(after):
            PausedStep(model=training.model, batch=_next_batch(batches, ranks.device, after), config=alone).run()
            training.optimizer.step()
            training.optimizer.zero_grad()
        yield PausedStep(model=training.model, batch=_next_batch(batches, ranks.device, after), config=alone)


def _next_batch(batches: Iterator[Batch], device: torch.device, after: int) -> Batch:
    batch = next(batches, None)
    if batch is None:
        raise PlanError.explain(f"An epoch of this training has no step {after}.", fix="--measure-step 0")
    return batch.to(device)


PlannedKind = Literal["weight", "activation", "gradient", "error"]
_PLANNED_KINDS: Final[tuple[PlannedKind, ...]] = ("weight", "activation", "gradient", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChoice:
    """The bits and the range of one kind of tensor at one site."""

    site: str
    kind: PlannedKind
    bits: int
    range: Range
    error: float
    """How much it changes the loss; for gradients, the error relative to their norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPlan:
    """The bits and ranges of a model, and their expected effect."""

    bits: int
    """The bits of every tensor that does not need more."""
    choices: tuple[FixedChoice, ...]
    loss: float
    loss_change: float

    def settings(self) -> FixedPointSettings:
        """Return the settings: the most common of each kind, and the sites that differ, outer ones first."""
        usual = {kind: TensorSetting(bits=self.bits, range=self._usual_range(kind)) for kind in _PLANNED_KINDS}
        sites: dict[str, dict[str, TensorSetting]] = {}
        for each in sorted(self.choices, key=lambda choice: choice.site.count(".")):
            around = [
                table[each.kind] for outer, table in sites.items() if covers(outer, each.site) and each.kind in table
            ]
            own = TensorSetting(bits=each.bits, range=each.range)
            if each.site and own != (around[-1] if around else usual[each.kind]):
                sites.setdefault(each.site, {})[each.kind] = own
        return FixedPointSettings(**usual, sites=sites)  # type: ignore[arg-type]

    def recipe(self, *, name: str) -> Recipe:
        """Return the recipe."""
        return Recipe(name=name, compute="fixed", fixed=self.settings())

    def evidence(self) -> list[tuple[str, str]]:
        """Return what the choice is based on, as facts with labels, the tensors that matter most first."""
        wider = Counter(f"{each.bits} bits" for each in self.choices)
        ranges = Counter(str(each.range) for each in self.choices)
        share = self.loss_change / abs(self.loss) if self.loss else 0.0
        forward = (each for each in self.choices if each.kind in ("weight", "activation"))
        worst = sorted(forward, key=lambda choice: -choice.error)[:5]
        return [
            (
                "expected",
                f"the loss {self.loss:.4g} changes by {self.loss_change:.2g} ({100 * share:.2g} %) in one step",
            ),
            ("widths", _join_counts(wider)),
            ("ranges", _join_counts(ranges)),
            *(("largest", f"{each.site or '<model>'} {each.kind}: {each.error:.2g}") for each in worst),
        ]

    def _usual_range(self, kind: PlannedKind) -> Range:
        counts = Counter(each.range for each in self.choices if each.kind == kind)
        return max(RANGES, key=lambda name: counts[name])


def measure_and_choose_fixed(config: TrainConfig, *, bits: int, target: Target, step: int) -> FixedPlan:
    """Train for a few steps in float, then choose by what quantizing each tensor does to the loss of the next."""
    with pausing_training(config, after=step) as paused:
        return choose_fixed(paused, bits=bits, target=target)


def _join_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} at {name}" for name, count in sorted(counts.items()))


_EXTRA_BITS: Final = (0, 2, 4, 8)
_MAX_BITS: Final = 16
_MIN_GRADIENT_DB: Final = 15.0
"""Rounding a gradient does not change the loss of this step, so it takes enough bits to keep its direction."""


def choose_fixed(paused: PausedStep, *, bits: int, target: Target) -> FixedPlan:
    """Return bits and ranges for every module: the best range, and more bits until the target is met."""
    seen, loss = _observe_step(paused)
    widths = sorted({min(bits + more, max(bits, _MAX_BITS)) for more in _EXTRA_BITS})
    forward = [each for each in seen if each.kind in ("weight", "activation")]
    ranges = [{width: _best_range(each, width) for width in widths} for each in forward]
    choices = [
        [
            FormatChoice(fmt=str(width), squared_change=found[width][1], num_bits=each.num_elements * width)
            for width in widths
        ]
        for each, found in zip(forward, ranges, strict=True)
    ]
    picked = choose_formats(choices, target=target, loss=loss)
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
class _SeenTensors:
    """The tensors of one kind at one site, with dL/dx for those that the forward pass uses."""

    site: str
    kind: PlannedKind
    pairs: list[tuple[Tensor, Tensor | None]]

    @property
    def num_elements(self) -> int:
        return sum(x.numel() for x, _ in self.pairs)


def _observe_step(paused: PausedStep) -> tuple[list[_SeenTensors], float]:
    """Run the step once, and return the tensors that fixed point would quantize, and the loss."""
    outputs: dict[str, list[Tensor]] = {}
    made: list[Tensor] = []

    def note(name: str, module: nn.Module, args: object, output: object) -> None:
        # The output of an inner module is noted there already, and a scalar loss is not quantized.
        if isinstance(output, Tensor) and output.requires_grad and output.dim() and not any(x is output for x in made):
            output.retain_grad()
            made.append(output)
            outputs.setdefault(name, []).append(output)

    hooks = [
        module.register_forward_hook(partial(note, site_of(name))) for name, module in paused.model.named_modules()
    ]
    paused.model.zero_grad()
    try:
        loss = float(paused.run())
    finally:
        for hook in hooks:
            hook.remove()
    seen = [*_parameters(paused.model), *_outputs(outputs)]
    paused.model.zero_grad()
    return seen, loss


def _parameters(model: nn.Module) -> Iterator[_SeenTensors]:
    for name, module in model.named_modules():
        named = [] if is_norm(module) else module.named_parameters(recurse=False)
        weights = [(x.detach(), x.grad) for own, x in named if x.grad is not None and "bias" not in own]
        if weights:
            yield _SeenTensors(site=site_of(name), kind="weight", pairs=list(weights))
            yield _SeenTensors(site=site_of(name), kind="gradient", pairs=[(gradient, None) for _, gradient in weights])


def _outputs(outputs: Mapping[str, Sequence[Tensor]]) -> Iterator[_SeenTensors]:
    for site, tensors in outputs.items():
        with_gradient = [(x.detach(), x.grad) for x in tensors if x.grad is not None]
        if with_gradient:
            yield _SeenTensors(site=site, kind="activation", pairs=list(with_gradient))
            yield _SeenTensors(site=site, kind="error", pairs=[(gradient, None) for _, gradient in with_gradient])


def _best_range(seen: _SeenTensors, bits: int) -> tuple[Range, float]:
    """Return the range that changes the loss least, and the square of that change.

    <g, d> is how much this loss changes; the sum of (g d)^2 is added for what chance may do in other steps.
    """
    errors: dict[Range, float] = {}
    for name in RANGES:
        products = [_rounding_error(x, bits, name) * gradient for x, gradient in seen.pairs if gradient is not None]
        moved = math.fsum(float(each.double().sum()) for each in products)
        errors[name] = moved**2 + math.fsum(float(each.double().square().sum()) for each in products)
    best = min(RANGES, key=errors.__getitem__)
    return best, errors[best]


def _gradient_choice(seen: _SeenTensors, widths: Sequence[int]) -> FixedChoice:
    """Return the fewest bits, and the range, with which a gradient keeps its direction."""
    length = math.fsum(float(x.double().square().sum()) for x, _ in seen.pairs)
    for bits in widths:
        errors = {
            name: math.fsum(float(_rounding_error(x, bits, name).double().square().sum()) for x, _ in seen.pairs)
            for name in RANGES
        }
        best = min(RANGES, key=errors.__getitem__)
        relative = errors[best] / length if length else 0.0
        if relative <= 10 ** (-_MIN_GRADIENT_DB / 10):
            break
    return FixedChoice(site=seen.site, kind=seen.kind, bits=bits, range=best, error=math.sqrt(relative))


def _rounding_error(x: Tensor, bits: int, name: Range) -> Tensor:
    scale = torch.zeros((), device=x.device)
    return quantize_fixed(x, scale, FixedRule(num_bits=bits, range=name), follow="data").values - x
