"""How an updated weight is rounded to its format: to nearest, at random, or with its error remembered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roundoff.formats import Format, round_to
from roundoff.precision.recipe import Recipe
from roundoff.precision.sharded import local_part, place_of

_COMPENSATION = "kahan_compensation"


class WeightUpdate:
    """Writes an updated main weight into the model.

    - With master weights, or to nearest, the parameter becomes the rounded main weight.
    - `stochastic`: the update was computed in fp32; its result is rounded at random, with the same numbers on every
      rank, so that replicas stay equal.
    - `kahan`: what rounding takes away is kept, in the same format, and given back at the next update.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._kind = "nearest" if recipe.master_weights else recipe.update
        self._generator = torch.Generator()
        if self._kind == "stochastic":
            self._generator.manual_seed(_shared_seed())

    @torch.no_grad()
    def apply(self, parameter: Tensor, main: Tensor, fmt: Format, states: Any) -> None:
        """Round `main` into `parameter`; without master weights `main` then holds the same numbers.

        Of sharded weights each rank rounds its own part.
        """
        is_shadowed, stream = main is not parameter, place_of(main)
        compensation = local_part(_compensation_in(states[main], main)) if self._kind == "kahan" else None
        parameter, main = local_part(parameter), local_part(main)
        if self._kind == "stochastic":
            round_to(main.data, fmt, rounding="stochastic", generator=self._generator, stream=stream, out=main.data)
            parameter.copy_(main)
        elif compensation is not None:
            _compensate(parameter, main, fmt, compensation)
        elif is_shadowed and main.dtype is parameter.dtype:
            round_to(main.detach(), fmt, out=parameter.detach())
        elif is_shadowed:
            parameter.copy_(main)
        elif parameter.dtype is torch.float32:
            round_to(parameter.detach(), fmt, out=parameter.detach())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random numbers."""
        return {"generator": self._generator.get_state()} if self._kind == "stochastic" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the random numbers of a checkpoint, if it has any."""
        if self._kind == "stochastic" and "generator" in state:
            self._generator.set_state(state["generator"].cpu())


def _compensation_in(state: dict[str, Any], main: Tensor) -> Tensor:
    if _COMPENSATION not in state:
        state[_COMPENSATION] = torch.zeros_like(main)
    compensation: Tensor = state[_COMPENSATION]
    return compensation


def _compensate(parameter: Tensor, main: Tensor, fmt: Format, compensation: Tensor) -> None:
    before = parameter.float()
    wanted = main - before + compensation
    after = round_to(before + wanted, fmt)
    lost = wanted - (after - before)
    compensation.copy_(round_to(lost, fmt))
    main.copy_(after)
    parameter.copy_(after)


def _shared_seed() -> int:
    """Return torch's seed, or that of rank 0: ranks that see different data must round their weights alike."""
    seed = torch.initial_seed() % 2**63
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return seed
    seeds = [seed]
    torch.distributed.broadcast_object_list(seeds, src=0)
    return int(seeds[0])
