"""One quantized tensor of a live model: its setting, where its scale is kept, and what was seen of it."""

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
from roundoff.precision.recipe.fixed_point_settings import TensorKind
from roundoff.precision.recipe.recipe_environment import is_frozen
from roundoff.precision.recipe.tensor_setting import TensorSetting

# == Remembers which tensors a module has dealt with already, so that the module around it lets them pass.

_TensorSettings = tuple[TensorSetting, TensorSetting]
"""The settings of a tensor and of its gradient."""


class QuantizedTensors:
    """Settings by tensor, for as long as the tensor lives. Nothing is written on the tensor: it may be saved.

    Copies and pickles begin empty.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], int, _TensorSettings]] = {}

    def put(self, x: Tensor, dealt: _TensorSettings) -> None:
        """Note that `x` has been dealt with."""
        key = id(x)

        def forget(ref: weakref.ref[Tensor]) -> None:
            if key in self._found and self._found[key][0] is ref:
                del self._found[key]

        self._found[key] = (weakref.ref(x, forget), _version(x), dealt)

    def get(self, x: Tensor) -> _TensorSettings | None:
        """Return how this very tensor was dealt with; None if it was not, or has been written into since."""
        ref, version, dealt = self._found.get(id(x), (None, 0, None))
        return dealt if ref is not None and ref() is x and version == _version(x) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizedTensors, ()


def _version(x: Tensor) -> int:
    """Return what changes when somebody writes into `x`; inference tensors do not count that."""
    return -1 if x.is_inference() else x._version


@dataclass(slots=True, eq=False)
class PassCounter:
    """Numbers the passes through a model: a new one begins with the outermost call of one of its modules."""

    passes: int = 0
    depth: int = 0
    marks: QuantizedTensors = field(default_factory=QuantizedTensors)

    def enter(self, *, is_root: bool) -> None:
        """Note that a module begins. The root always begins a pass: an interrupted one may have left the depth."""
        if self.depth == 0 or is_root:
            self.passes += 1
            self.depth = 0
        self.depth += 1

    def leave(self) -> None:
        """Note that a module has ended."""
        self.depth = max(self.depth - 1, 0)


@dataclass(slots=True, eq=False)
class Quantizer:
    """A tensor's live state. The scale itself is a buffer of its module: it moves, saves and replicates with it.

    A tensor that occurs several times in a pass (a module called twice) gets the largest of its scales, since there is
    one to keep for evaluation.
    """

    name: str
    kind: TensorKind
    setting: TensorSetting
    buffer: str
    clock: PassCounter
    channel_axis: int | None = None  # None: the second of four or more, else the last
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
        """Go on with another setting; the scale stays."""
        self.setting = setting
        self.rule = setting.rule
        self.is_active = setting.method != "none"

    def another(self, place: int) -> Quantizer:
        """Return a fresh slot for another tensor of the same kind and module, the one at `place` of its outputs."""
        return Quantizer(
            name=f"{self.name}{place}",
            kind=self.kind,
            setting=replace(self.setting, scale=None),
            buffer=f"{self.buffer}{place}",
            clock=self.clock,
            channel_axis=self.channel_axis,
        )

    def quantize(self, scale: Tensor, x: Tensor, *, training: bool, wants_beyond: bool = False) -> Quantized:
        """Round `x`, after `scale` has followed it where the method says so.

        Outside training every value goes to the nearest code, so that an evaluation can be repeated.
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
        """Let the scale follow `x` under the method `auto`, without rounding anything."""
        if self.setting.method == "auto" and not self._is_frozen:
            self._measure(scale, x)

    def measure_if_unset(self, scale: Tensor, x: Tensor) -> None:
        """Take the scale from `x`, whatever the method, if there is none yet."""
        if not self.is_set and x.device.type != "meta":
            self._measure(scale, x)

    @property
    def num_nonfinite(self) -> int:
        """How many NaN and infinities have passed; waits for the devices that counted."""
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
                    f"'{self.name}' has the method 'fixed' and no scale.",
                    why="no data has been seen under 'auto', no scale was given, and none was loaded.",
                    fix="train with 'auto' first, give a scale, or load a state_dict that has one.",
                )
            return "never"
        if self.is_set and (not training or self._is_frozen):
            return "never"
        return "at_least" if self.is_set and self.last_pass == self.clock.passes else "data"

    def _axis_for(self, scale: Tensor, x: Tensor) -> int | None:
        """Return the axis of the channels, and give `scale` one number for each of them."""
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
        else:  # not in place: the first may have come in inference mode
            before = self.counts.get(found.device)
            self.counts[found.device] = found if before is None else before + found


# == Quantizes a tensor on its way forward and its gradient on the way back, each with its own setting and
# == scale.


class _StraightThrough(torch.autograd.Function):
    """The gradient passes where the rounded value is within the scale, and is zero beyond it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        slot: Quantizer,
        scale: Tensor,
        gradient_slot: Quantizer,
        gradient_scale: Tensor,
        training: bool,
    ) -> Tensor:
        ctx.slot, ctx.scale, ctx.training = gradient_slot, gradient_scale, training
        ctx.beyond = None
        if not slot.is_active:
            return x.view_as(x)
        found = slot.quantize(scale, x, training=training, wants_beyond=True)
        ctx.beyond = found.beyond
        return found.values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        result = gradient
        if ctx.slot.is_active:
            result = _quantize_gradient(ctx.slot, ctx.scale, gradient, training=ctx.training)
        if ctx.beyond is not None:
            fresh = result.to_dense() if result.is_sparse else result.contiguous()
            result = zero_beyond_(fresh.clone() if fresh is gradient else fresh, ctx.beyond)
        return result, None, None, None, None, None


_apply: Callable[..., Tensor] = _StraightThrough.apply


def quantize_both_ways(
    x: Tensor, slot: Quantizer, scale: Tensor, gradient_slot: Quantizer, gradient_scale: Tensor, *, training: bool
) -> Tensor:
    """Return `x` quantized as `slot` says; its gradient will be quantized as `gradient_slot` says.

    Without grad mode, or where `x` needs no gradient, nothing is kept for a backward.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return _apply(x, slot, scale, gradient_slot, gradient_scale, training)
    if not slot.is_active:
        return x
    return slot.quantize(scale, x, training=training).values


def _quantize_gradient(slot: Quantizer, scale: Tensor, gradient: Tensor, *, training: bool) -> Tensor:
    """Quantize a gradient; of a sparse one (an embedding's) the rows that are there."""
    if not gradient.is_sparse:
        return slot.quantize(scale, gradient, training=training).values
    gradient = gradient.coalesce()
    values = slot.quantize(scale, gradient.values(), training=training).values
    return torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
    )
