"""Keeps the scales of several ranks equal: each becomes the largest of theirs, as if one rank had seen all data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from roundoff.precision.fixed.hooks import SITE

_HANDLE = "_fixed_point_ranks"


def attach_to_root(model: nn.Module) -> None:
    """Have scales synchronised after every training forward that DistributedDataParallel or FSDP2 runs."""
    model.__dict__[_HANDLE] = model.register_forward_hook(_after_forward)


def detach_from_root(model: nn.Module) -> None:
    """Stop doing so."""
    handle = model.__dict__.pop(_HANDLE, None)
    if handle is not None:
        handle.remove()


def scales_of(model: nn.Module) -> list[Tensor]:
    """List the scales of a converted model, in the order of its modules."""
    found = []
    for module in model.modules():
        site = module.__dict__.get(SITE)
        if site is not None:
            found += [module.get_submodule(child).get_buffer(slot.buffer) for child, slot in site.slots()]
    return found


def take_largest(scales: Sequence[Tensor]) -> None:
    """Write the largest of all ranks into every scale, in one collective that every rank must call."""
    if not scales or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    with torch.no_grad():
        flat = torch.cat([scale.reshape(-1).float() for scale in scales])
        dist.all_reduce(flat, op=dist.ReduceOp.MAX)
        parts = flat.split([scale.numel() for scale in scales])
        for scale, part in zip(scales, parts, strict=True):
            scale.copy_(part.view(scale.shape))


def _after_forward(model: nn.Module, args: Any, output: Any) -> None:
    """Synchronise where all ranks surely are at the same place: in a training forward under DDP or FSDP2.

    DDP broadcasts buffers before a forward; what this one has measured would differ by rank until the next, which an
    evaluation of the bare model never gets. With uneven inputs (`join`) a rank may be gone, and nothing is done.
    """
    if not model.training or not torch.is_grad_enabled():
        return
    ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)
    is_under_ddp = ddp is not None and ddp.module is model and not ddp._join_config.enable
    if is_under_ddp or isinstance(model, FSDPModule):
        take_largest(scales_of(model))
