"""What frameworks count: the optimizer's steps, the batches of norms, powers of Adam's betas."""

from __future__ import annotations

import torch

from roundoff.checkpoints.checkpoint import Checkpoint, Entry, Role, StoredTensor
from roundoff.checkpoints.pairing_layers import UNCOUNTED

STEPS = frozenset({"global_step", "step", "iterations"})
BETA_POWERS = {"beta1_power": 0, "beta2_power": 1}
"""MindSpore's Adam keeps the power of each beta instead of the step."""


def step_of(source: Checkpoint) -> int | None:
    """Return how many steps the optimizer has made, where the checkpoint tells."""
    for entry in source.entries.values():
        is_beside = entry.role in (Role.OPTIMIZER, Role.OTHER) and torch.Size(entry.shape).numel() == 1
        if is_beside and entry.name.rpartition(".")[2] in STEPS:
            return int(source.tensor(entry.name).reshape(()).item())
    return None


def betas_of(source: Checkpoint) -> tuple[float, float] | None:
    """Return Adam's betas, where a checkpoint of PyTorch tells them."""
    match source.settings.get("optimizer.param_groups.0.betas"):
        case [float() as first, float() as second]:
            return first, second
    return None


def one_number(name: str, value: float, *, dtype: str, shape: tuple[int, ...], role: Role) -> StoredTensor:
    """Return a tensor of one value, to be written."""
    entry = Entry(name=name, shape=shape, dtype=dtype, role=role)
    return StoredTensor(entry=entry, read=lambda: torch.full(shape, value, dtype=getattr(torch, dtype)))


def counter_like(wanted: Entry, source: Checkpoint) -> StoredTensor | None:
    """Make a counter that only the other side has of what the source tells; None if `wanted` is none, or it does not.

    Batches are counted as steps: a norm that was trained sees one batch a step. Where no step is known they are 0, as
    in a norm that is new.
    """
    step = step_of(source)
    last = wanted.name.rpartition(".")[2]
    betas = betas_of(source)
    value: float | None = None
    if last == UNCOUNTED:
        value = step or 0
    elif last in STEPS and step is not None:
        value = step
    elif last in BETA_POWERS and betas is not None and step is not None:
        value = betas[BETA_POWERS[last]] ** step
    if value is None:
        return None
    return one_number(wanted.name, value, dtype=wanted.dtype, shape=wanted.shape, role=wanted.role)
