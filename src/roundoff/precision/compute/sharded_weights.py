"""Weights that FSDP2 divides among the ranks: each rank's part, and what a forward gathers of all parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

Action = Callable[[Tensor], None]

_Owned = tuple[nn.Module, str, Sequence[Action]]
"""A module, the name of one of its parameters, and what to do to what is gathered of it."""

_PREPARED = "_roundoff_prepared"


def local_part(x: Tensor) -> Tensor:
    """Return the memory of a sharded tensor that this rank holds; of any other, the tensor itself."""
    return x.to_local() if isinstance(x, DTensor) else x


def place_of(x: Tensor) -> int:
    """Return the number of this rank among those that share a tensor; 0 if it is not sharded."""
    return x.device_mesh.get_local_rank() if isinstance(x, DTensor) and x.device_mesh.ndim == 1 else 0


class Gathering:
    """Hooks around those of FSDP2: they keep a mode of ours out of its work, and prepare what it hands over.

    The model computes with gathered tensors, which are others than the optimizer's: a hook on a gradient, or a mark,
    must go onto them, once they are there. FSDP2 keeps them, so once is enough. A module's inputs are other tensors
    behind FSDP2's hook, too, each time: `carry(before, behind)` says what the new ones are to take over.
    """

    def __init__(
        self,
        actions: Mapping[Tensor, Sequence[Action]],
        *,
        pause: Callable[[bool], None],
        carry: Callable[[Any, Any], None],
    ) -> None:
        self._actions = actions
        self._pause = pause
        self._carry = carry
        self._inputs: Any = None

    def attach(self, model: nn.Module) -> list[RemovableHandle]:
        """Put the hooks on every part of a model that FSDP2 gathers by itself; return them."""
        hooks: list[RemovableHandle] = []
        for module in model.modules():
            if isinstance(module, FSDPModule):
                prepare = partial(self._prepare, self._owned_by(module))
                hooks.append(module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True))
                hooks.append(module.register_forward_pre_hook(prepare, with_kwargs=True))
                hooks.append(module.register_forward_hook(lambda *_: self._pause(True), prepend=True))
                hooks.append(module.register_forward_hook(lambda *_: self._pause(False)))
        return hooks

    def _owned_by(self, module: nn.Module) -> list[_Owned]:
        return [
            (owner, name, self._actions[parameter])
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False)
            if parameter in self._actions
        ]

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._pause(True)
        self._inputs = (args, kwargs)

    def _prepare(self, owned: list[_Owned], module: nn.Module, args: Any, kwargs: Any) -> None:
        self._pause(False)
        self._carry(self._inputs, (args, kwargs))
        self._inputs = None
        for owner, name, actions in owned:
            gathered = owner._parameters[name]
            # What a part further inside gathers by itself is not there yet.
            if gathered is None or isinstance(gathered, DTensor) or hasattr(gathered, _PREPARED):
                continue
            for action in actions:
                action(gathered)
            setattr(gathered, _PREPARED, True)
