"""Quantizes what one module uses and makes: its parameters while it runs, its statistics, its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from roundoff.precision.fixed.quantizer import PassCounter, Quantizer, quantize_both_ways

_STACK = "_fixed_point_hidden"  # kept in the module itself: a replica in another thread has its own

_Hidden = tuple[dict[str, Any], str, Any]
"""Where something was put, under which name, and what to put back; None for what hid a parameter or buffer."""


@dataclass(slots=True, eq=False)
class QuantizerWithGradient:
    """A tensor and its gradient. `is_exception`: an override speaks of one of them."""

    forward: Quantizer
    backward: Quantizer
    is_exception: bool = False

    @property
    def is_active(self) -> bool:
        """Whether either is quantized."""
        return self.forward.is_active or self.backward.is_active

    def apply(self, owner: nn.Module, x: Tensor) -> Tensor:
        """Quantize `x` both ways with the scales that `owner`, maybe a replica, holds."""
        scales = owner._buffers
        forward, backward = scales[self.forward.buffer], scales[self.backward.buffer]
        assert forward is not None
        assert backward is not None
        return quantize_both_ways(x, self.forward, forward, self.backward, backward, training=owner.training)


@dataclass(slots=True, eq=False)
class ParameterUse:
    """A parameter that the module reads; `child` names the child it belongs to if the module reads it there."""

    child: str
    name: str
    pair: QuantizerWithGradient


@dataclass(slots=True, eq=False)
class ModuleQuantizers:
    """The hooks of one module. It knows the module by name only, so that copies and replicas of the module can use it.

    While the module runs, its instance dictionary holds the quantized tensors: they hide the parameters, which stay the
    float master weights that they are.
    """

    name: str
    clock: PassCounter
    parameters: list[ParameterUse] = field(default_factory=list)
    statistics: dict[str, Quantizer] = field(default_factory=dict)
    outputs: list[QuantizerWithGradient] = field(default_factory=list)

    def slots(self) -> Iterator[tuple[str, Quantizer]]:
        """Yield every slot with the name of the child whose buffer holds its scale."""
        for use in self.parameters:
            yield use.child, use.pair.forward
            yield use.child, use.pair.backward
        for slot in self.statistics.values():
            yield "", slot
        for pair in self.outputs:
            yield "", pair.forward
            yield "", pair.backward

    def measure_parameters(self, module: nn.Module) -> None:
        """Take scales that are not set from what the parameters and statistics hold: eval and `fixed` need one."""
        for use in self.parameters:
            owner = module.get_submodule(use.child)
            use.pair.forward.measure_if_unset(
                _scale(owner, use.pair.forward), _gather_parameter(owner.get_parameter(use.name))
            )
        for name, slot in self.statistics.items():
            slot.measure_if_unset(_scale(module, slot), module.get_buffer(name))

    def add_output(self, module: nn.Module) -> None:
        """Make room for one output more, set like the first, and register its scales on the module."""
        first, place = self.outputs[0], len(self.outputs)
        pair = QuantizerWithGradient(first.forward.another(place), first.backward.another(place), first.is_exception)
        self.outputs.append(pair)
        like = _scale(module, first.forward)
        with torch.inference_mode(False):
            for slot in (pair.forward, pair.backward):
                module.register_buffer(slot.buffer, like.new_zeros(()))

    def before(self, module: nn.Module, args: Any) -> None:
        """Put quantized parameters (and, in eval, statistics) in front of the real ones."""
        self.clock.enter(is_root=not self.name)
        hidden: list[_Hidden] = []
        stack = module.__dict__.setdefault(_STACK, [])
        if stack and stack[-1][0] != self.clock.passes:
            stack.clear()  # an interrupt ended an earlier pass without a word
        stack.append((self.clock.passes, hidden))
        for use in self.parameters:
            if use.pair.is_active:
                self._quantize_parameter(module.get_submodule(use.child), use, hidden)
        if hidden and isinstance(module, nn.RNNBase):
            weights = [getattr(module, name) for name in module._flat_weights_names]
            _replace_attribute(module.__dict__, "_flat_weights", weights, hidden, before=module._flat_weights)
        if not module.training:
            for name, slot in self.statistics.items():
                value = module._buffers.get(name)
                if value is not None and slot.is_active:
                    quantized = slot.quantize(_scale(module, slot), value, training=False).values
                    _replace_attribute(module.__dict__, name, quantized, hidden)

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Take the quantized tensors away again, and quantize the output; called after an exception, too."""
        if not _restore_attributes(module):
            return None  # a hook before ours failed, and ours did not run
        self.clock.leave()
        if module.training:
            for name, slot in self.statistics.items():
                value = module._buffers.get(name)
                if value is not None:
                    slot.follow(_scale(module, slot), value)
        if not self.outputs or output is None:
            return None
        return _each_tensor(output, _OutputQuantizer(self, module))

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
    """Quantizes the tensors of one output, the nth with the nth pair of the site.

    A tensor that a module inside has made and dealt with passes, also one it left float, unless an override of this
    module says something else.
    """

    def __init__(self, site: ModuleQuantizers, module: nn.Module) -> None:
        self.site = site
        self.module = module
        self.place = 0

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_floating_point() or x.dim() == 0:
            return x  # a scalar is a loss, not an activation
        if self.place == len(self.site.outputs):
            self.site.add_output(self.module)
        pair = self.site.outputs[self.place]
        self.place += 1
        settings = (pair.forward.setting, pair.backward.setting)
        dealt = self.site.clock.marks.get(x)
        if dealt is not None and (not pair.is_exception or dealt == settings):
            return x
        result = pair.apply(self.module, x) if pair.is_active else x
        self.site.clock.marks.put(result, settings)
        return result


def _restore_attributes(module: nn.Module) -> bool:
    """Take away what the last call put into the module; say whether there was such a call."""
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
    """Return a parameter with the parts of all ranks put together, where FSDP2 has divided it."""
    return parameter.full_tensor().detach() if isinstance(parameter, DTensor) else parameter


def _scale(module: nn.Module, slot: Quantizer) -> Tensor:
    scale = module._buffers[slot.buffer]
    assert scale is not None
    return scale


def _replace_attribute(
    space: dict[str, Any], name: str, value: Any, hidden: list[_Hidden], *, before: Any = None
) -> None:
    hidden.append((space, name, before))
    space[name] = value


def _each_tensor(output: Any, function: _OutputQuantizer) -> Any:
    """Rebuild an output with its tensors replaced: tensors, and tuples, lists, dicts and dataclasses of them."""
    if isinstance(output, Tensor):
        return function(output)
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_each_tensor(item, function) for item in output))
    if isinstance(output, tuple | list):
        return type(output)(_each_tensor(item, function) for item in output)
    if isinstance(output, dict):
        for key, item in output.items():
            output[key] = _each_tensor(item, function)
        return output
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        changes = {
            f.name: _each_tensor(getattr(output, f.name), function) for f in dataclasses.fields(output) if f.init
        }
        return dataclasses.replace(output, **changes)
    return output


# == Puts a site's hooks on its module and takes them off, and lets scales pass through state_dicts.

SITE = "_fixed_point"
"""The attribute of a converted module that holds its site."""
_HANDLES = "_fixed_point_handles"


def attach(module: nn.Module, site: ModuleQuantizers) -> None:
    """Register the hooks. Real hooks, not a wrapped forward: torch leaves its fused paths where it sees them."""
    module.__dict__[SITE] = site
    module.__dict__[_HANDLES] = [
        module.register_forward_pre_hook(site.before),
        module.register_forward_hook(site.after, always_call=True),
        module.register_load_state_dict_pre_hook(_before_loading),
        module.register_load_state_dict_post_hook(_after_loading),
    ]


def detach(module: nn.Module) -> None:
    """Remove the hooks and the scales."""
    site: ModuleQuantizers = module.__dict__.pop(SITE)
    for handle in module.__dict__.pop(_HANDLES):
        handle.remove()
    for child, slot in site.slots():
        owner = module.get_submodule(child)
        owner._buffers.pop(slot.buffer, None)
        owner._non_persistent_buffers_set.discard(slot.buffer)


def _before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give each scale the shape of the one that comes, and keep those that a float checkpoint does not have."""
    site: ModuleQuantizers = module.__dict__[SITE]
    while site.outputs and f"{prefix}{site.outputs[0].forward.buffer}{len(site.outputs)}" in state:
        site.add_output(module)
    for child, slot in site.slots():
        key = f"{prefix}{child}{'.' if child else ''}{slot.buffer}"
        scale = module.get_submodule(child).get_buffer(slot.buffer)
        if key not in state:
            state[key] = scale if slot.kind in ("activation", "error", "gradient") else torch.zeros_like(scale)
        elif isinstance(state[key], Tensor) and state[key].shape != scale.shape:
            scale.resize_(state[key].shape)


def _after_loading(module: nn.Module, _: Any) -> None:
    """Note which scales are there now, and measure parameters that came without one."""
    site: ModuleQuantizers = module.__dict__[SITE]
    for child, slot in site.slots():
        scale = module.get_submodule(child).get_buffer(slot.buffer)
        slot.last_pass = -1
        if scale.device.type != "meta":
            slot.is_set = bool(torch.all(scale > 0)) and scale.numel() > 0
    site.measure_parameters(module)
