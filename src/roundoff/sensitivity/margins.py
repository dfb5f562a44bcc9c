"""How much room the tensors of a running training leave to the limits of the formats of its recipe."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from roundoff import torch_private
from roundoff.errors import RecipeError
from roundoff.formats import BlockFormat, ScaledBlocks, format_named, round_to
from roundoff.precision import Recipe
from roundoff.precision.compute.operands import wide_layers, with_axis
from roundoff.precision.recipe.site_formats import CONVOLUTIONS, is_norm, override_sites
from roundoff.record.loop.follower import LoopFollower, ModuleCall, is_in_training
from roundoff.record.loop.observer import observing_loop

MarginKind = Literal["overflow", "underflow", "accuracy"]
TensorPart = Literal["input", "weight", "result", "gradient"]

_HEADROOM_BITS = 2.0
_FLOOR_BITS = 6.0
_MIN_SNR_DB = 10.0
_DB_PER_BIT = 20 * math.log10(2)
_LAYERS = (nn.Linear, *CONVOLUTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How far one tensor of one step is from a limit of its format."""

    step: int
    site: str
    part: TensorPart
    fmt: str
    kind: MarginKind
    bits: float
    """How many powers of two are left to the limit; 0 or less: it is reached. In accuracy, a bit is 6 dB."""
    value: float
    """The largest number of the tensor; for the accuracy, the signal-to-noise ratio of rounding it, in dB."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What is the same in every step."""
        return self.site, self.part, self.kind


@contextlib.contextmanager
def measuring_margins(
    recipe: Recipe, *, every: int, on_step: Callable[[int, list[Margin]], None]
) -> Iterator[MarginMeasurement]:
    """Follow the trainings of this process inside the block, and measure every nth step; nothing of them changes.

    The limits are those that a plan respects: a factor of 4 below the largest number; gradients whose largest number
    is 2^6 times the smallest normal one; a rounding error of a third. Formats with their own scales have no range to
    leave, so that only the last one counts for them.

    Args:
        recipe: Says which layer has which format; it need not be applied.
        every: Steps 0, every, 2 * every, ... are measured.
        on_step: Called with the margins of a measured step when it has ended.
    """
    follower = MarginMeasurement(recipe, every=every, on_step=on_step)
    with observing_loop(follower):
        yield follower
        if follower.clock.has_begun:
            follower.close_step()


@dataclass(frozen=True, slots=True)
class _SiteFormats:
    values: str
    weight: str
    gradient: str
    is_scaled: bool
    """Whether operands are scaled into the range of the format before they are rounded."""
    axis: int


class MarginMeasurement(LoopFollower):
    """Measures what enters and leaves the narrow modules in the chosen steps, and their gradients."""

    def __init__(self, recipe: Recipe, *, every: int, on_step: Callable[[int, list[Margin]], None]) -> None:
        super().__init__()
        self._recipe, self._every, self._on_step = recipe, every, on_step
        self._formats: dict[nn.Module, _SiteFormats] = {}
        self._known: set[nn.Module] = set()
        self._margins: dict[tuple[str, str, str], Margin] = {}
        self.failure: str | None = None
        """Why the measurement has ended early; the training has not."""

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """Measure the operands of a layer."""
        if not call.depth and call.module not in self._known:
            self._known.add(call.module)
            with contextlib.suppress(RecipeError):  # a further model, which the recipe is not about
                self._formats |= _formats_of(call.module, self._recipe)
        formats = self._measured(call)
        if formats is None or not formats.is_scaled:
            return
        site = self.sites.names[call.site]
        for x in args[:1]:
            self._measure(x, site, "input", formats.values, formats)
        self._measure(getattr(call.module, "weight", None), site, "weight", formats.weight, formats)

    def module_returned(self, call: ModuleCall, output: Any) -> None:
        """Measure the result of a module, and its gradient when that arrives."""
        formats = self._measured(call)
        if formats is None or not isinstance(output, Tensor):
            return
        site = self.sites.names[call.site]
        if not formats.is_scaled:
            self._measure(output, site, "result", formats.values, formats)
        if output.requires_grad:
            output.register_hook(lambda grad: self._measure(grad, site, "gradient", formats.gradient, formats))

    def step_closed(self, step: int) -> None:
        """Report the margins of a measured step."""
        if self._margins:
            margins, self._margins = list(self._margins.values()), {}
            self._on_step(step, margins)

    def failed(self, error: Exception) -> None:
        """End the measurement; the training continues."""
        self.failure = self.failure or f"measuring failed with {type(error).__name__}: {error}"

    def _measured(self, call: ModuleCall) -> _SiteFormats | None:
        if self.failure or self.clock.step % self._every or self.clock.in_backward or not is_in_training(call.module):
            return None
        return self._formats.get(call.module) if torch.is_grad_enabled() else None

    def _measure(self, x: Any, site: str, part: TensorPart, fmt: str, formats: _SiteFormats) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel() or fmt == "fp32":
            return
        try:
            with torch_private.hidden_from_modes(), torch.no_grad():
                found = list(_margins_of(x.detach().float(), fmt, part=part, formats=formats))
        except Exception as error:  # nothing of ours may end a training
            self.failed(error)
            return
        for kind, bits, value in found:
            margin = Margin(step=self.clock.step, site=site, part=part, fmt=fmt, kind=kind, bits=bits, value=value)
            if margin.key not in self._margins or bits < self._margins[margin.key].bits:
                self._margins[margin.key] = margin


def _margins_of(
    x: Tensor, name: str, *, part: TensorPart, formats: _SiteFormats
) -> Iterator[tuple[MarginKind, float, float]]:
    largest = float(x.abs().max())
    if not largest:
        return
    fmt = format_named(name)
    if formats.is_scaled:
        yield "accuracy", *_accuracy(x, name, largest, axis=formats.axis)
        return
    if not math.isfinite(largest):
        yield "overflow", -math.inf, largest
        return
    yield "overflow", math.log2(fmt.largest / largest) - _HEADROOM_BITS, largest
    if part == "gradient":
        yield "underflow", math.log2(largest / fmt.smallest_normal) - _FLOOR_BITS, largest


def _accuracy(x: Tensor, name: str, largest: float, *, axis: int) -> tuple[float, float]:
    if not math.isfinite(largest):
        return -math.inf, -math.inf
    fmt = with_axis(format_named(name), axis, x.dim())
    if not isinstance(fmt, BlockFormat | ScaledBlocks):
        x = x * (fmt.largest / largest)
    error = float((round_to(x, fmt) - x).norm())
    snr_db = 20 * math.log10(float(x.norm()) / error) if error else math.inf
    return (snr_db - _MIN_SNR_DB) / _DB_PER_BIT, snr_db


def _formats_of(model: nn.Module, recipe: Recipe) -> dict[nn.Module, _SiteFormats]:
    """Return the formats of the modules that a recipe rounds; what is wide is left out."""
    overridden = override_sites(model, recipe.overrides)
    wide = set(wide_layers(model, recipe))
    found = {}
    for module in model.modules():
        is_layer = isinstance(module, _LAYERS)
        if module in wide or (not is_layer and recipe.compute != "cast"):
            continue
        fmt = overridden.get(module) or (recipe.norms if is_norm(module) else recipe.compute_format)
        operands, is_scaled = recipe.operands, recipe.compute == "operands"
        values, weight, gradient = fmt, fmt, fmt
        if is_scaled and module not in overridden:
            values, weight, gradient = operands.forward, operands.weight or operands.forward, operands.backward
        axis = 1 if isinstance(module, CONVOLUTIONS) else -1
        if {values, weight, gradient} != {"fp32"}:
            found[module] = _SiteFormats(values, weight, gradient, is_scaled, axis)
    return found
