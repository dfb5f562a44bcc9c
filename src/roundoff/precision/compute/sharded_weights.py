"""Several ranks, and weights that FSDP2 shards over them: the part of each, and the whole that a forward gathers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed, nn
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Action = Callable[[Tensor], None]

_Owned = tuple[nn.Module, str, Sequence[Action]]
"""A module, the name of one of its parameters, and the actions for the gathered tensor."""

_PREPARED = "_roundoff_prepared"


def is_distributed() -> bool:
    """Whether this process is one of several ranks, or the only one of a group."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """Return the rank of this process; 0 without a group."""
    return distributed.get_rank() if is_distributed() else 0


def as_sharded(x: Any) -> DTensor | None:
    """Return a sharded tensor as one, None if it is not sharded.

    Torch needs a second to load that class, and sympy with it: where the script has not loaded it, nothing is sharded.
    """
    loaded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return x if loaded is not None and isinstance(x, loaded) else None


def is_gathered(module: nn.Module) -> bool:
    """Return whether FSDP2 gathers the weights of a module, which is loaded only where the script does so."""
    loaded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return loaded is not None and isinstance(module, loaded)


def local_part(x: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other tensor is returned as it is."""
    sharded = as_sharded(x)
    return x if sharded is None else sharded.to_local()


def place_of(x: Tensor) -> int:
    """Return the index of this rank among those that share a tensor; 0 if it is not sharded."""
    sharded = as_sharded(x)
    return sharded.device_mesh.get_local_rank() if sharded is not None and sharded.device_mesh.ndim == 1 else 0


class Gathering:
    """Hooks around those of FSDP2: they pause our modes while it works, and prepare the tensors it gathers.

    The model computes with gathered tensors, not with those of the optimizer: gradient hooks and marks must be put on
    the gathered ones, once, because FSDP2 keeps them. A module's inputs are new tensors after FSDP2's hook, every time:
    `carry(before, after)` transfers what is known about them.
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
        """Put the hooks on every part of the model that FSDP2 gathers separately; return them."""
        hooks: list[RemovableHandle] = []
        for module in model.modules():
            if is_gathered(module):
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
            # Parameters of an inner part that FSDP2 gathers separately are not there yet.
            if gathered is None or as_sharded(gathered) is not None or hasattr(gathered, _PREPARED):
                continue
            for action in actions:
                action(gathered)
            setattr(gathered, _PREPARED, True)
