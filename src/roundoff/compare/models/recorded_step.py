"""One training step of a model, recorded op by op, that leaves no trace."""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from roundoff.errors import CompareError, first_line
from roundoff.record import recording
from roundoff.record.recording import IncompleteRecordingWarning
from roundoff.runs import Event, Run

Inputs: TypeAlias = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
Loss: TypeAlias = Callable[..., Tensor]
MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWithout(Run):
    """A run that tells nothing of some parameters: neither their start values, nor what is made of them in backward.

    For weights of another layout: their gradients come out of other products, and all of it would look different.
    """

    hidden: frozenset[str]

    def iter_events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Event]:
        """Yield the requested events without those of the hidden parameters."""
        sites = {name.rpartition(".")[0] for name in self.hidden}
        for event in Run.iter_events(self, step=step, site=site, phase=phase, op=op, rank=rank):
            is_start = event.op == "parameter" and event.parameter in self.hidden
            if not is_start and not (event.site in sites and event.phase in ("backward", "optimizer")):
                yield event


def copy_model(model: nn.Module, *, name: str) -> nn.Module:
    """Return a copy of a model that can be changed; a `CompareError` if it cannot be copied."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a model's parts say against it
        raise CompareError.explain(
            f"The {name} cannot be copied, so that it could be left as it is.",
            why=f"{first_line(error)}.",
            fix="hand over the model before its first forward pass, without tensors that a graph hangs on.",
        ) from error


@contextlib.contextmanager
def keeping_random_state() -> Iterator[None]:
    """Give back the state of every random number generator when the block ends."""
    python, numbers = random.getstate(), np.random.get_state()
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices = range(torch.accelerator.device_count()) if accelerator is not None else ()
    with torch.random.fork_rng(devices, device_type=accelerator.type if accelerator is not None else "cuda"):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model: a mapping gives arguments by name, a tuple or list by place, anything else is the only one."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def clone_tensors(value: Any) -> Any:
    """Return a copy of a value with tensors of its own."""
    return pytree.tree_map_only(Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), value)


def record_step(
    model: nn.Module,
    inputs: Inputs,
    *,
    to: Path,
    targets: Any,
    loss: Loss | None,
    make_optimizer: MakeOptimizer,
    hidden: Collection[str] = (),
) -> Run:
    """Take one step of `model`, which it changes: forward, backward, optimizer; and return what was recorded of it.

    Of the parameters in `hidden` it tells nothing but the forward pass; see `RunWithout`.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = None
    optimizer = make_optimizer(trained) if trained else None
    with keeping_random_state(), warnings.catch_warnings():
        # A model without anything to train never ends its step by an optimizer, and says so.
        warnings.simplefilter("ignore", IncompleteRecordingWarning)
        with recording(model, to=to, inputs=True, stacks=True, strict=True), torch.enable_grad():
            output = call_model(model, clone_tensors(inputs))
            value = _loss_of(output, clone_tensors(targets), loss)
            if optimizer is not None and value.requires_grad:
                value.backward()
                optimizer.step()
    return RunWithout(path=to, info=Run.open(to).info, hidden=frozenset(hidden))


def _loss_of(output: Any, targets: Any, loss: Loss | None) -> Tensor:
    """Return the loss: as given, or else the mean square of every number that came out."""
    if loss is not None:
        return loss(output) if targets is None else loss(output, targets)
    parts = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    if not parts:
        raise CompareError.explain(
            "The models return no floating-point tensor.", fix="say what to compare: loss=lambda output: ..."
        )
    return torch.stack([x.float().square().mean() for x in parts]).sum()
