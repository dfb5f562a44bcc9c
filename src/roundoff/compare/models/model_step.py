"""One step of a model, on a copy: forward, loss, backward; recorded, or as it is."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.errors import CompareError, first_line
from roundoff.record.accelerator import keeping_torch_generators
from roundoff.record.event_selection import RecordingSettings
from roundoff.record.recording_block import start_recording
from roundoff.runs import Run
from roundoff.torch_private import tree_leaves, tree_map_only

Inputs: TypeAlias = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
Loss: TypeAlias = Callable[..., Tensor]
MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter]], Optimizer]


def copy_model(model: nn.Module, *, name: str) -> nn.Module:
    """Return a copy of a model that can be changed; a `CompareError` if it cannot be copied."""
    if any(x.is_meta for x in (*model.parameters(), *model.buffers())):
        raise CompareError.explain(
            f"The weights of the {name} are on the meta device.",
            why="they have no values to compare.",
            fix='move the model first: model.to_empty(device="cpu"), then load its weights.',
        )
    try:
        return copy.deepcopy(model)
    except Exception as error:  # a module may refuse to be copied with any exception
        raise CompareError.explain(
            f"The {name} cannot be copied, and comparing must not change it.",
            why=f"{first_line(error)}.",
            fix="pass the model before its first forward pass, without tensors that hold an autograd graph.",
        ) from error


@contextlib.contextmanager
def keeping_random_state() -> Iterator[None]:
    """Restore the state of every random number generator when the block ends."""
    python, numbers = random.getstate(), np.random.get_state()
    with keeping_torch_generators():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model with a mapping of keyword arguments, a tuple or list of arguments, or a single one."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def clone_tensors(value: Any, device: torch.device | None = None) -> Any:
    """Return a copy of a value that shares no tensor with it, on another device if one is given."""

    def clone(x: Tensor) -> Tensor:
        return x.detach().to(device or x.device, copy=True).requires_grad_(x.requires_grad)

    return tree_map_only(Tensor, clone, value)


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device that a model is on; None if it is on several or has no tensors."""
    used = {x.device for x in (*model.parameters(), *model.buffers())}
    return used.pop() if len(used) == 1 else None


def record_step(
    model: nn.Module,
    inputs: Inputs,
    *,
    to: Path,
    targets: Any,
    loss: Loss | None,
    make_optimizer: MakeOptimizer,
) -> Run:
    """Take one step of `model`, which changes it: forward, backward, optimizer; and return the recorded run."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = None
    optimizer = make_optimizer(trained) if trained else None
    # Not `recording`, which says that the step never ended if a model has no trainable parameters.
    session = start_recording(model, to=to, settings=RecordingSettings(inputs=True, stacks=True, strict=True))
    with keeping_random_state(), session.running(), torch.enable_grad():
        device = device_of(model)
        output = call_model(model, clone_tensors(inputs, device))
        value = loss_of(output, clone_tensors(targets, device), loss)
        if optimizer is not None and value.requires_grad:
            value.backward()
            optimizer.step()
    return Run.open(to)


def loss_of(output: Any, targets: Any, loss: Loss | None) -> Tensor:
    """Return the given loss, or else the sum of the mean squares of all outputs."""
    if loss is not None:
        return loss(output) if targets is None else loss(output, targets)
    parts = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    if not parts:
        raise CompareError.explain(
            "The models return no floating-point tensor.", fix="say what to compare: loss=lambda output: ..."
        )
    return torch.stack([x.float().square().mean() for x in parts]).sum()
