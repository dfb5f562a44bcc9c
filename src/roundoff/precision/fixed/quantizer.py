"""Quantizes one tensor of a model, and its gradient: the setting, the scale, and counts of non-finite values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from roundoff.errors import RecipeError
from roundoff.kernels.random_numbers import draw_key
from roundoff.kernels.rounding_rules import FixedRule, Follow, Rounding
from roundoff.kernels.scaled_fixed_point import Quantized, follow_data_, quantize_fixed, zero_beyond_
from roundoff.precision.recipe.fixed_point_settings import TensorKind, TensorSetting
from roundoff.precision.recipe.recipe_environment import is_frozen
from roundoff.torch_private import version_of

_TensorSettings = tuple[TensorSetting, TensorSetting]
"""The settings of a tensor and of its gradient."""


class QuantizedTensors:
    """Which tensors were quantized already, and how, so that an outer module does not quantize them again.

    Entries live as long as their tensor. Nothing is set on the tensor itself, because the user may save it. Copied and
    unpickled instances start empty.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], int, _TensorSettings]] = {}

    def put(self, x: Tensor, settings: _TensorSettings) -> None:
        """Note that `x` was quantized with `settings`."""
        key = id(x)

        def forget(ref: weakref.ref[Tensor]) -> None:
            if key in self._found and self._found[key][0] is ref:
                del self._found[key]

        self._found[key] = (weakref.ref(x, forget), version_of(x), settings)

    def get(self, x: Tensor) -> _TensorSettings | None:
        """Return the settings of a quantized tensor; None if it was not quantized, or was modified since."""
        ref, version, settings = self._found.get(id(x), (None, 0, None))
        return settings if ref is not None and ref() is x and version == version_of(x) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizedTensors, ()


@dataclass(slots=True, eq=False)
class PassCounter:
    """Counts the passes through a model: each outermost call of one of its modules starts a new one."""

    passes: int = 0
    depth: int = 0
    quantized: QuantizedTensors = field(default_factory=QuantizedTensors)

    def enter(self, *, is_root: bool) -> None:
        """Note that a module starts. The root always starts a pass: an interrupted pass may have left a wrong depth."""
        if self.depth == 0 or is_root:
            self.passes += 1
            self.depth = 0
        self.depth += 1

    def leave(self) -> None:
        """Note that a module has returned."""
        self.depth = max(self.depth - 1, 0)


@dataclass(slots=True, eq=False)
class Quantizer:
    """Quantizes one tensor. Its scale is a buffer of its module, so that it is moved, saved and replicated with it.

    A tensor that occurs several times in a pass (a module called twice) keeps the largest of its scales, because
    evaluation uses a single one.
    """

    name: str
    kind: TensorKind
    setting: TensorSetting
    buffer: str
    clock: PassCounter
    channel_axis: int | None = None  # None: the second of four or more axes, otherwise the last
    is_set: bool = False
    was_used: bool = False
    last_pass: int = -1
    num_counted: int = 0
    counts: dict[torch.device, Tensor] = field(default_factory=dict)
    rule: FixedRule = field(init=False)
    is_active: bool = field(init=False)

    def __post_init__(self) -> None:
        self.use(self.setting)

    def use(self, setting: TensorSetting) -> None:
        """Switch to another setting; the scale stays."""
        self.setting = setting
        self.rule = setting.rule
        self.is_active = setting.method != "none"

    def another(self, place: int) -> Quantizer:
        """Return a new quantizer for the output at `place` of the same module."""
        return Quantizer(
            name=f"{self.name}{place}",
            kind=self.kind,
            setting=replace(self.setting, scale=None),
            buffer=f"{self.buffer}{place}",
            clock=self.clock,
            channel_axis=self.channel_axis,
        )

    def quantize(self, scale: Tensor, x: Tensor, *, training: bool, wants_beyond: bool = False) -> Quantized:
        """Round `x`, after updating `scale` from it where the method says so.

        Outside training, values are always rounded to nearest, so that an evaluation can be repeated.
        """
        if not x.numel():
            return Quantized(x.clone(), None, 0)
        setting = self.setting
        follow = self._follow(training)
        is_stochastic = training and setting.rounding == "stochastic"
        rounding: Rounding = "stochastic" if is_stochastic else "nearest"
        key = draw_key() if is_stochastic else 0
        axis = None
        if setting.granularity == "batch" and follow != "never" and x.dim():
            found = quantize_fixed(
                x, per_sample := scale.new_zeros(x.shape[0]), self.rule, follow="data", axis=0,
                rounding=rounding, key=key, wants_beyond=wants_beyond,
            )  # fmt: skip
            largest = per_sample.amax().reshape(scale.shape)
            scale.copy_(torch.maximum(scale, largest) if follow == "at_least" else largest)
        else:
            if setting.granularity == "channel":
                axis = self._axis_for(scale, x)
                follow = self._follow(training)
            found = quantize_fixed(
                x, scale, self.rule, follow=follow, axis=axis, rounding=rounding, key=key, wants_beyond=wants_beyond
            )
        if follow != "never":
            self.is_set, self.last_pass = True, self.clock.passes
        self.was_used = True
        self._count(found.num_nonfinite)
        return found

    def follow(self, scale: Tensor, x: Tensor) -> None:
        """Update the scale from `x` under the method `auto`, without rounding anything."""
        if self.setting.method == "auto" and not self._is_frozen:
            self._measure(scale, x)

    def measure_if_unset(self, scale: Tensor, x: Tensor) -> None:
        """Take the scale from `x`, whatever the method, if there is none yet."""
        if not self.is_set and x.device.type != "meta":
            self._measure(scale, x)

    @property
    def num_nonfinite(self) -> int:
        """The number of NaN and infinities so far; reading it waits for the devices that counted."""
        return self.num_counted + sum(int(count.item()) for count in self.counts.values())

    @property
    def _is_frozen(self) -> bool:
        return self.is_set and is_frozen(num_steps=self.clock.passes - 1)

    def _measure(self, scale: Tensor, x: Tensor) -> None:
        if x.numel():
            axis = self._axis_for(scale, x) if self.setting.granularity == "channel" else None
            follow_data_(scale, x, self.rule, axis=axis)
            self.is_set = True

    def _follow(self, training: bool) -> Follow:
        if self.setting.method == "fixed":
            if not self.is_set:
                raise RecipeError.explain(
                    f"'{self.name}' has the method 'fixed' but no scale.",
                    why="it has seen no data under 'auto', no scale was set, and none was loaded.",
                    fix="train with 'auto' first, set a scale, or load a state_dict that has one.",
                )
            return "never"
        if self.is_set and (not training or self._is_frozen):
            return "never"
        return "at_least" if self.is_set and self.last_pass == self.clock.passes else "data"

    def _axis_for(self, scale: Tensor, x: Tensor) -> int | None:
        """Return the axis of the channels, and resize `scale` to one number for each."""
        if self.kind not in ("activation", "error"):
            axis = 0 if x.dim() > 1 else None
        elif self.channel_axis is not None and x.dim() >= -self.channel_axis:
            axis = self.channel_axis
        else:
            axis = 1 if x.dim() >= 4 else -1
        if axis is None or x.dim() == 0:
            return None
        if scale.numel() != x.shape[axis]:
            given = self.setting.scale
            scale.resize_(x.shape[axis]).fill_(given or 0.0)
            self.is_set = given is not None
        return axis

    def _count(self, found: int | Tensor) -> None:
        if isinstance(found, int):
            self.num_counted += found
        else:  # not in place: the first count may be an inference tensor
            before = self.counts.get(found.device)
            self.counts[found.device] = found if before is None else before + found


class _StraightThrough(torch.autograd.Function):
    """The gradient passes where the rounded value is within the scale, and is zero beyond it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        quantizer: Quantizer,
        scale: Tensor,
        gradient_quantizer: Quantizer,
        gradient_scale: Tensor,
        training: bool,
    ) -> Tensor:
        ctx.quantizer, ctx.scale, ctx.training = gradient_quantizer, gradient_scale, training
        ctx.beyond = None
        if not quantizer.is_active:
            return x.view_as(x)
        found = quantizer.quantize(scale, x, training=training, wants_beyond=True)
        ctx.beyond = found.beyond
        return found.values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        result = gradient
        if ctx.quantizer.is_active:
            result = _quantize_gradient(ctx.quantizer, ctx.scale, gradient, training=ctx.training)
        if ctx.beyond is not None:
            fresh = result.to_dense() if result.is_sparse else result.contiguous()
            result = zero_beyond_(fresh.clone() if fresh is gradient else fresh, ctx.beyond)
        return result, None, None, None, None, None


_apply: Callable[..., Tensor] = _StraightThrough.apply


def quantize_both_ways(
    x: Tensor,
    quantizer: Quantizer,
    scale: Tensor,
    gradient_quantizer: Quantizer,
    gradient_scale: Tensor,
    *,
    training: bool,
) -> Tensor:
    """Return `x` quantized by `quantizer`; its gradient will be quantized by `gradient_quantizer`.

    Nothing is saved for backward if `x` needs no gradient or grad mode is off.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return _apply(x, quantizer, scale, gradient_quantizer, gradient_scale, training)
    if not quantizer.is_active:
        return x
    return quantizer.quantize(scale, x, training=training).values


def _quantize_gradient(quantizer: Quantizer, scale: Tensor, gradient: Tensor, *, training: bool) -> Tensor:
    """Quantize a gradient; of a sparse one (of an embedding) only the existing rows."""
    if not gradient.is_sparse:
        return quantizer.quantize(scale, gradient, training=training).values
    gradient = gradient.coalesce()
    values = quantizer.quantize(scale, gradient.values(), training=training).values
    return torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
    )
