"""Puts a site's hooks on its module and takes them off, and lets scales pass through state_dicts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from roundoff.precision.fixed.site import Site

SITE = "_fixed_point"
"""The attribute of a converted module that holds its site."""
_HANDLES = "_fixed_point_handles"


def attach(module: nn.Module, site: Site) -> None:
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
    site: Site = module.__dict__.pop(SITE)
    for handle in module.__dict__.pop(_HANDLES):
        handle.remove()
    for child, slot in site.slots():
        owner = module.get_submodule(child)
        owner._buffers.pop(slot.buffer, None)
        owner._non_persistent_buffers_set.discard(slot.buffer)


def _before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give each scale the shape of the one that comes, and keep those that a float checkpoint does not have."""
    site: Site = module.__dict__[SITE]
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
    site: Site = module.__dict__[SITE]
    for child, slot in site.slots():
        scale = module.get_submodule(child).get_buffer(slot.buffer)
        slot.last_pass = -1
        if scale.device.type != "meta":
            slot.is_set = bool(torch.all(scale > 0)) and scale.numel() > 0
    site.measure_parameters(module)
