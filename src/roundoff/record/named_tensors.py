"""Tensors that no op computes: parameters, what comes into a model, and gradients as an optimizer sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from roundoff.record.recorder import OpRecorder
from roundoff.record.sites import Sites
from roundoff.record.steps import Phase, StepClock
from roundoff.record.torch_private import hidden_from_modes, is_transformed


class NamedTensors:
    """Hands the recorder what it cannot see as the result of an op."""

    def __init__(self, recorder: OpRecorder, *, sites: Sites, clock: StepClock) -> None:
        self._recorder = recorder
        self._sites = sites
        self._clock = clock
        self._gradients_taken = False

    def new_step(self) -> None:
        """Get ready for the gradients of another step."""
        self._gradients_taken = False

    def take_parameters(self) -> None:
        """Take the values that a step starts from."""
        with hidden_from_modes():
            for parameter in self._sites.parameters():
                site, name = self._sites.of_parameter(parameter)
                self._recorder.add_named(parameter, op="parameter", phase=Phase.FORWARD, site=site, parameter=name)

    def take_inputs(self, site: int, arguments: Any) -> None:
        """Take the tensors that the loop calls a model with."""
        clock = self._clock
        with hidden_from_modes():
            batch = _tensors_of_batch(arguments)
            for index, x in enumerate(x for x in batch if not is_transformed(x)):
                self._recorder.add_named(
                    x,
                    op="input",
                    phase=clock.phase,
                    site=site,
                    output=index,
                    microbatch=clock.microbatch,
                    has_source=True,
                )

    def take_gradients(self, optimizer: Optimizer | None) -> None:
        """Take the gradients of one optimizer's parameters, or of all models where nobody steps; once a step."""
        if self._gradients_taken:
            return
        self._gradients_taken = True
        if optimizer is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
        else:
            parameters = list(self._sites.parameters())
        with hidden_from_modes():
            for parameter in parameters:
                if parameter.grad is not None:
                    site, name = self._sites.of_parameter(parameter)
                    self._recorder.add_named(
                        parameter.grad, op="gradient", phase=Phase.BACKWARD, site=site, parameter=name
                    )


def _tensors_of_batch(value: Any) -> Iterator[Tensor]:
    """Give the tensors of a batch, looking into lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_of_batch(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_of_batch(getattr(value, field.name, None))
