"""Saves and restores the state of a recipe between steps, apart from tensors, to repeat a step or to undo it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from roundoff.precision.applied_recipe import AppliedRecipe
    from roundoff.precision.weights import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The loss scale, counts, histories and copied buffers of a model with a recipe at one moment.

    Parameters, buffers, main weights and the inner optimizer's state are not included: the caller saves those tensors.
    """

    scaler: dict[str, Any]
    computation: dict[str, Any]
    updates: dict[str, Any]
    current: dict[Tensor, bool]
    """By parameter: whether its main weight is up to date with it."""
    buffers: tuple[list[Tensor], list[Tensor], bool] | None
    counts: tuple[int, float | None, list[str | None]]
    optimizers: list[tuple[list[Weight] | None, str | None]]


def remember(shared: AppliedRecipe) -> StepMemory:
    """Return a copy of the state at the start of the next step."""
    return StepMemory(
        scaler=shared.scaler.remember(),
        computation=copy.deepcopy(shared.computation.state_dict()),
        updates=copy.deepcopy(shared.weights.state_dict()),
        current={p: p._version == weight.version for p, weight in shared.weights.by_parameter.items()},
        buffers=None if shared.buffers is None else shared.buffers.remember(),
        counts=shared.remember_counts(),
        optimizers=[optimizer.remember_gradients() for optimizer in shared.optimizers],
    )


def recall(shared: AppliedRecipe, memory: StepMemory) -> None:
    """Return to an earlier state; the tensors must be restored already, or be restored without a new version."""
    shared.scaler.recall(memory.scaler)
    shared.computation.recall(copy.deepcopy(memory.computation))
    shared.weights.load_state_dict(copy.deepcopy(memory.updates))
    for parameter, is_current in memory.current.items():
        shared.weights.by_parameter[parameter].version = parameter._version if is_current else -1
    if shared.buffers is not None and memory.buffers is not None:
        shared.buffers.recall(memory.buffers)
    shared.recall_counts(memory.counts)
    for optimizer, gradients in zip(shared.optimizers, memory.optimizers, strict=True):
        optimizer.recall_gradients(gradients)


@contextlib.contextmanager
def repeating(shared: AppliedRecipe, memory: StepMemory) -> Iterator[None]:
    """Return to an earlier state inside the block, without logging; afterwards the present state is back.

    A block that resets the versions of tensors must be inside this one.
    """
    own = remember(shared)
    weights = list(shared.weights.by_parameter.values())
    versions = [weight.grad_version for weight in weights]
    with shared.scaler.silenced():
        recall(shared, memory)
        try:
            yield
        finally:
            recall(shared, own)
            for weight, version in zip(weights, versions, strict=True):
                weight.grad_version = version
