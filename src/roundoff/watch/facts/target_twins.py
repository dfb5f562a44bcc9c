"""Copies of a trained model that the loop asks without gradients, such as a target network: do they ever change?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.record.identity import IdentityDict
from roundoff.record.loop.sites import Sites
from roundoff.record.structure import parameters_of
from roundoff.replay.state import Training
from roundoff.runs import TargetTwinProbe
from roundoff.watch.facts.tensor_hashes import hash_of

_MAX_MODELS = 8
_MAX_ELEMENTS = 2**24
_MAX_INPUTS = 16
_FIRST_LOOK = 64
"""Calls until a copy is looked at, and at the next one; then again after twice as many each time."""


@dataclass(slots=True)
class _TargetTwin:
    """One copy, as it was when it was first called."""

    trained: list[ref[Tensor]]
    """The weights that an optimizer holds and that it is a copy of."""
    start: tuple[int, ...]
    num_calls: int = 0
    next_look: int = _FIRST_LOOK
    inputs: list[str] = field(default_factory=list)
    model: tuple[int, ...] = ()
    """The model's weights at the call before, where that was looked at."""
    num_pairs: int = 0
    num_current: int = 0


class TargetTwins:
    """Finds models that start with exactly the weights that an optimizer trains, in other memory, and follows them.

    Weights on an accelerator are left alone: hashing them would mean waiting.
    """

    def __init__(self, training: Training, sites: Sites) -> None:
        self._training = training
        self._sites = sites
        self._known: IdentityDict[nn.Module, _TargetTwin | None] = IdentityDict()

    def is_followed(self, module: nn.Module) -> bool:
        """Whether a call of this model is to be seen: it is a copy, or not known yet."""
        return self._known.get(module) is not None or (module not in self._known and len(self._known) < _MAX_MODELS)

    def see(self, module: nn.Module, args: tuple[Any, ...], step: int) -> TargetTwinProbe | None:
        """Count a call without gradients; return what is known of the copy when it is time to look."""
        known = self._known.get(module)
        if known is None:
            known = self._known[module] = self._find_twin(module)
        if known is None:
            return None
        known.num_calls += 1
        if len(known.inputs) < _MAX_INPUTS and args and type(args[0]) is Tensor and args[0].is_cpu:
            known.inputs.append(f"{hash_of(args[0].detach()):016x}")
        if known.num_calls < known.next_look:
            return None
        trained = [x for reference in known.trained if (x := reference()) is not None]
        if len(trained) < len(known.start):
            return None
        copy, model = _hashes(module.parameters()), _hashes(trained)
        if known.num_calls % _FIRST_LOOK == 0:
            known.next_look += 1  # is it current at two calls, between which the model has moved?
            known.model = model if copy == model else ()
            known.num_pairs += 1
        else:
            known.next_look = 2 * (known.next_look - 1)
            known.num_current += bool(known.model) and known.model != model == copy
        return TargetTwinProbe(
            step=step,
            site=self._sites.names[self._sites.of_module(module, 0)],
            parameter=self._sites.of_parameter(trained[0])[1],
            num_calls=known.num_calls,
            has_moved=copy != known.start,
            model_has_moved=model != known.start,
            num_pairs=known.num_pairs,
            num_current=known.num_current,
            inputs=tuple(known.inputs),
        )

    def _find_twin(self, module: nn.Module) -> _TargetTwin | None:
        """Match each parameter of a module with one of an optimizer that has the same values."""
        held = [p for optimizer in self._training.optimizers for p in parameters_of(optimizer)]
        parameters, ids = list(module.parameters()), {id(p) for p in held}
        if not parameters or any(id(p) in ids or not _is_readable(p) for p in parameters):
            return None
        shapes = {p.shape for p in parameters}
        by_value = {hash_of(p.detach()): p for p in held if p.shape in shapes and _is_readable(p)}
        start = _hashes(parameters)
        if len(set(start)) < 2 or not all(number in by_value for number in start):
            return None
        return _TargetTwin([ref(by_value[number]) for number in start], start)


def _is_readable(x: Tensor) -> bool:
    is_lazy = nn.parameter.is_lazy(x)
    return not is_lazy and x.is_cpu and x.layout is torch.strided and 0 < x.numel() <= _MAX_ELEMENTS


def _hashes(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(hash_of(x.detach()) for x in tensors)
