"""The moving average of the weights, which is often better than the last ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """A running average of a model's parameters, kept in fp32 whatever they are in.

    Buffers, such as the statistics of batch norm, are averages already and are used as they are.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self._decay = decay
        self._averages = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights by 1 - decay."""
        for name, parameter in model.named_parameters():
            self._averages[name].lerp_(parameter.detach().float(), 1 - self._decay)

    @contextlib.contextmanager
    def in_place_of_weights(self, model: nn.Module) -> Iterator[None]:
        """Let the model compute with the average inside the block."""
        parameters = dict(model.named_parameters())
        weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        _write(parameters, self._averages)
        try:
            yield
        finally:
            _write(parameters, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by parameter name."""
        return dict(self._averages)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from saved averages."""
        _write(self._averages, state)


@torch.no_grad()
def _write(to: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in to.items():
        # Through `data`, which leaves the version alone: master weights follow what others write into the model, and
        # would be the rounded ones when these are back.
        tensor.data.copy_(values[name])
