"""Follows copies of a whole model, such as an average of its weights: which of their tensors stay as they were."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.replay.state import Training
from roundoff.runs import AverageTwinProbe
from roundoff.torch_private import has_no_memory

FIRST_STEP = 4
"""Copies are searched for after this step."""
_MAX_TWINS = 4
_MAX_LOOKS = 8
_MAX_ELEMENTS = 2**26
_MIN_MOVE = 1e-3
"""Of the sum of magnitudes; biases before a norm hardly move at all."""
_COUNTERS = ("num_batches_tracked", "n_averaged")


@dataclass(frozen=True, slots=True)
class _AverageTwin:
    module: ref[nn.Module]
    model: ref[nn.Module]
    own_start: dict[str, tuple[float, float]]
    model_start: dict[str, tuple[float, float]]


class AverageTwins:
    """Finds copies of the models after some steps, and looks at one again when it is evaluated.

    An average may be completed in the end, as that of stochastic weight averaging is: only what is used counts.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._twins: dict[int, _AverageTwin] = {}
        self._num_looks = 0

    def step_ended(self, step: int) -> None:
        """Search for copies after one of the first steps."""
        if step != FIRST_STEP:
            return
        models = [model for model in self._training.models if 0 < _num_elements(model) <= _MAX_ELEMENTS]
        shapes = {id(model): _shapes(model) for model in models}
        known = {id(module) for module in self._training.modules()}
        if not models:
            return
        for x in gc.get_objects():
            if not issubclass(type(x), nn.Module) or id(x) in known or len(self._twins) >= _MAX_TWINS:
                continue
            model = next((m for m in models if shapes[id(m)] == _shapes(x) and _is_apart(m, x)), None)
            if model is not None:
                self._twins[id(x)] = _AverageTwin(ref(x), ref(model), _sums(x), _sums(model))

    def is_followed(self, module: nn.Module) -> bool:
        """Say whether a module is a copy that is to be looked at."""
        return id(module) in self._twins

    def see(self, module: nn.Module, step: int) -> AverageTwinProbe | None:
        """Compare a copy with its start, and with its model, now that it is evaluated."""
        twin = self._twins.get(id(module))
        model = None if twin is None else twin.model()
        if twin is None or model is None or twin.module() is not module or self._num_looks >= _MAX_LOOKS:
            return None
        self._num_looks += 1
        own, live = _sums(module), _sums(model)
        moving = [name for name, value in live.items() if _has_moved(twin.model_start.get(name, value), value)]
        still = [name for name in moving if name in own and own[name] == twin.own_start.get(name)]
        return AverageTwinProbe(
            step=step,
            kind=type(module).__name__,
            num_moving=len(moving),
            num_followed=sum(name in own for name in moving) - len(still),
            still=tuple(still),
            buffers=tuple(name for name in still if name in dict(model.named_buffers())),
        )


def _num_elements(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if not nn.parameter.is_lazy(p))


def _shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in module.parameters() if not nn.parameter.is_lazy(p)]


def _is_apart(model: nn.Module, other: nn.Module) -> bool:
    """Say whether no parameter is shared: a wrapper of a model is no copy."""
    mine = {id(p) for p in model.parameters()}
    return not any(id(p) in mine for p in other.parameters())


def _sums(module: nn.Module) -> dict[str, tuple[float, float]]:
    """Return the sum of each tensor, and that of its magnitudes, by name without the prefix of a wrapper."""
    named = [*module.named_parameters(), *module.named_buffers()]
    wanted = [(name.removeprefix("module."), x) for name, x in named if _is_wanted(name, x)]
    with torch.no_grad():
        wide = {name: x.detach().double() if x.is_cpu else x.detach().float() for name, x in wanted}
        return {name: (float(x.sum()), float(x.abs().sum())) for name, x in wide.items()}


def _has_moved(start: tuple[float, float], now: tuple[float, float]) -> bool:
    """Say whether a tensor has moved so far that a copy which follows it must have moved too."""
    return abs(now[0] - start[0]) > _MIN_MOVE * max(start[1], now[1])


def _is_wanted(name: str, x: Tensor) -> bool:
    is_plain = x.is_floating_point() and x.numel() > 0 and not x.is_meta and not has_no_memory(x)
    return is_plain and name.rpartition(".")[2] not in _COUNTERS
