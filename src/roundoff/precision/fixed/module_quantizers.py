"""Quantizes the tensors of one module: its parameters while it runs, its running statistics, its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.precision.compute.computation import map_floats
from roundoff.precision.compute.sharded_weights import as_sharded
from roundoff.precision.fixed.quantizer import PassCounter, Quantizer, quantize_both_ways
from roundoff.torch_private import FLAT_WEIGHTS, flat_weights

_STACK = "_fixed_point_hidden"  # stored in the module itself, so that a replica in another thread has its own

_Hidden = tuple[dict[str, Any], str, Any]
"""The dict and name of a replaced attribute, and the value to restore; None if it only hid a parameter or buffer."""


@dataclass(slots=True, eq=False)
class QuantizerWithGradient:
    """The quantizers of a tensor and of its gradient. `is_exception`: an override applies to one of them."""

    forward: Quantizer
    backward: Quantizer
    is_exception: bool = False

    @property
    def is_active(self) -> bool:
        """Whether either is quantized."""
        return self.forward.is_active or self.backward.is_active

    def apply(self, owner: nn.Module, x: Tensor) -> Tensor:
        """Quantize `x` and its gradient with the scales of `owner`, which may be a replica."""
        scales = owner._buffers
        forward, backward = scales[self.forward.buffer], scales[self.backward.buffer]
        assert forward is not None
        assert backward is not None
        return quantize_both_ways(x, self.forward, forward, self.backward, backward, training=owner.training)


@dataclass(slots=True, eq=False)
class ParameterUse:
    """A parameter that the module reads; `child` is the name of the child that owns it, if it is not its own."""

    child: str
    name: str
    pair: QuantizerWithGradient


@dataclass(slots=True, eq=False)
class ModuleQuantizers:
    """All quantizers of one module, and its hooks. It has no reference to the module, so that copies can share it.

    While the module runs, its instance dictionary holds the quantized tensors. They hide the parameters, which remain
    float master weights.
    """

    name: str
    clock: PassCounter
    parameters: list[ParameterUse] = field(default_factory=list)
    statistics: dict[str, Quantizer] = field(default_factory=dict)
    outputs: list[QuantizerWithGradient] = field(default_factory=list)
    accumulates_rounded: bool = False
    """Whether the running statistics are rounded before each step adds to them."""

    def each(self) -> Iterator[tuple[str, Quantizer]]:
        """Yield every quantizer with the name of the child that owns its scale."""
        for use in self.parameters:
            yield use.child, use.pair.forward
            yield use.child, use.pair.backward
        for quantizer in self.statistics.values():
            yield "", quantizer
        for pair in self.outputs:
            yield "", pair.forward
            yield "", pair.backward

    def measure_parameters(self, module: nn.Module) -> None:
        """Set missing scales from the parameters and statistics: eval and the method `fixed` need them."""
        for use in self.parameters:
            owner = module.get_submodule(use.child)
            use.pair.forward.measure_if_unset(
                _scale(owner, use.pair.forward), _gather_parameter(owner.get_parameter(use.name))
            )
        for name, quantizer in self.statistics.items():
            quantizer.measure_if_unset(_scale(module, quantizer), module.get_buffer(name))

    def add_output(self, module: nn.Module) -> None:
        """Add quantizers for one more output, like those of the first, and register their scales on the module."""
        first, place = self.outputs[0], len(self.outputs)
        pair = QuantizerWithGradient(first.forward.another(place), first.backward.another(place), first.is_exception)
        self.outputs.append(pair)
        like = _scale(module, first.forward)
        with torch.inference_mode(False):
            for quantizer in (pair.forward, pair.backward):
                module.register_buffer(quantizer.buffer, like.new_zeros(()))

    def before(self, module: nn.Module, args: Any) -> None:
        """Replace the parameters (in eval also the statistics) by quantized ones; `after` puts them back."""
        self.clock.enter(is_root=not self.name)
        hidden: list[_Hidden] = []
        stack = module.__dict__.setdefault(_STACK, [])
        if stack and stack[-1][0] != self.clock.passes:
            stack.clear()  # an interrupt ended an earlier pass without running its hooks
        stack.append((self.clock.passes, hidden))
        for use in self.parameters:
            if use.pair.is_active:
                self._quantize_parameter(module.get_submodule(use.child), use, hidden)
        if hidden and isinstance(module, nn.RNNBase) and (weights := flat_weights(module)) is not None:
            _replace_attribute(module.__dict__, FLAT_WEIGHTS, weights, hidden, before=getattr(module, FLAT_WEIGHTS))
        if not module.training or self.accumulates_rounded:
            self._quantize_statistics(module, hidden)

    def _quantize_statistics(self, module: nn.Module, hidden: list[_Hidden]) -> None:
        for name, quantizer in self.statistics.items():
            value = module._buffers.get(name)
            if value is None or not quantizer.is_active:
                continue
            quantized = quantizer.quantize(_scale(module, quantizer), value, training=module.training).values
            if module.training:
                value.copy_(quantized)
            else:
                _replace_attribute(module.__dict__, name, quantized, hidden)

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Remove the quantized tensors and quantize the output; also called after an exception."""
        if not _restore_attributes(module):
            return None  # a hook before ours failed, and ours did not run
        self.clock.leave()
        if module.training:
            for name, quantizer in self.statistics.items():
                value = module._buffers.get(name)
                if value is not None:
                    quantizer.follow(_scale(module, quantizer), value)
        if not self.outputs or output is None:
            return None
        return map_floats(output, _OutputQuantizer(self, module))

    @staticmethod
    def _quantize_parameter(owner: nn.Module, use: ParameterUse, hidden: list[_Hidden]) -> None:
        space = owner.__dict__
        value = owner._parameters.get(use.name)
        is_replica = value is None  # its parameters are plain attributes
        if is_replica:
            value = space.get(use.name)
        if value is None:
            return
        _replace_attribute(space, use.name, use.pair.apply(owner, value), hidden, before=value if is_replica else None)


class _OutputQuantizer:
    """Quantizes the tensors of one output, the nth with the nth pair of quantizers.

    A tensor that an inner module has computed is left as that module left it, quantized or float, unless an override of
    this module sets something else.
    """

    def __init__(self, quantizers: ModuleQuantizers, module: nn.Module) -> None:
        self.quantizers = quantizers
        self.module = module
        self.place = 0

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() == 0:
            return x  # a scalar is a loss, not an activation
        if self.place == len(self.quantizers.outputs):
            self.quantizers.add_output(self.module)
        pair = self.quantizers.outputs[self.place]
        self.place += 1
        settings = (pair.forward.setting, pair.backward.setting)
        earlier = self.quantizers.clock.quantized.get(x)
        if earlier is not None and (not pair.is_exception or earlier == settings):
            return x
        result = pair.apply(self.module, x) if pair.is_active else x
        self.quantizers.clock.quantized.put(result, settings)
        return result


def _restore_attributes(module: nn.Module) -> bool:
    """Restore the attributes that the last call replaced; return whether there was such a call."""
    stack: list[tuple[int, list[_Hidden]]] = module.__dict__.get(_STACK, [])
    if not stack:
        return False
    for space, name, value in reversed(stack.pop()[1]):
        if value is None:
            space.pop(name, None)
        else:
            space[name] = value
    if not stack:
        del module.__dict__[_STACK]
    return True


def _gather_parameter(parameter: Tensor) -> Tensor:
    """Return a whole parameter, gathered from all ranks if FSDP2 has sharded it."""
    sharded = as_sharded(parameter)
    return parameter if sharded is None else sharded.full_tensor().detach()


def _scale(module: nn.Module, quantizer: Quantizer) -> Tensor:
    scale = module._buffers[quantizer.buffer]
    assert scale is not None
    return scale


def _replace_attribute(
    space: dict[str, Any], name: str, value: Any, hidden: list[_Hidden], *, before: Any = None
) -> None:
    hidden.append((space, name, before))
    space[name] = value


QUANTIZERS = "_fixed_point"
"""The attribute that holds the quantizers of a converted module."""
_HANDLES = "_fixed_point_handles"


def attach(module: nn.Module, quantizers: ModuleQuantizers) -> None:
    """Register the hooks. They are not a wrapped forward, because torch avoids its fused paths only for hooks."""
    module.__dict__[QUANTIZERS] = quantizers
    module.__dict__[_HANDLES] = [
        module.register_forward_pre_hook(quantizers.before),
        module.register_forward_hook(quantizers.after, always_call=True),
        module.register_load_state_dict_pre_hook(_before_loading),
        module.register_load_state_dict_post_hook(_after_loading),
    ]


def detach(module: nn.Module) -> None:
    """Remove the hooks and the scales."""
    quantizers: ModuleQuantizers = module.__dict__.pop(QUANTIZERS)
    for handle in module.__dict__.pop(_HANDLES):
        handle.remove()
    for child, quantizer in quantizers.each():
        owner = module.get_submodule(child)
        owner._buffers.pop(quantizer.buffer, None)
        owner._non_persistent_buffers_set.discard(quantizer.buffer)


def _before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Resize each scale to the shape in the checkpoint, and keep the scales that a float checkpoint does not have."""
    quantizers: ModuleQuantizers = module.__dict__[QUANTIZERS]
    while quantizers.outputs and f"{prefix}{quantizers.outputs[0].forward.buffer}{len(quantizers.outputs)}" in state:
        quantizers.add_output(module)
    for child, quantizer in quantizers.each():
        key = f"{prefix}{child}{'.' if child else ''}{quantizer.buffer}"
        scale = module.get_submodule(child).get_buffer(quantizer.buffer)
        if key not in state:
            state[key] = scale if quantizer.kind in ("activation", "error", "gradient") else torch.zeros_like(scale)
        elif isinstance(state[key], Tensor) and state[key].shape != scale.shape:
            scale.resize_(state[key].shape)


def _after_loading(module: nn.Module, _: Any) -> None:
    """Note which scales are set now, and measure those of parameters that were loaded without one."""
    quantizers: ModuleQuantizers = module.__dict__[QUANTIZERS]
    for child, quantizer in quantizers.each():
        scale = module.get_submodule(child).get_buffer(quantizer.buffer)
        quantizer.last_pass = -1
        if scale.device.type != "meta":
            quantizer.is_set = bool(torch.all(scale > 0)) and scale.numel() > 0
    quantizers.measure_parameters(module)
