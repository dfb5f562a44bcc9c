"""The global random generators of a process: torch on every device in use, numpy, Python."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundoff.torch_private import hidden_from_modes


@dataclass(frozen=True, slots=True)
class Generators:
    """The state of every global generator at one moment."""

    torch_cpu: Tensor
    devices: tuple[Tensor, ...]
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Generators:
        """Read the states; about 50 us."""
        return cls(torch.get_rng_state(), _device_states(), np.random.get_state(), random.getstate())

    def restore(self) -> None:
        """Put every generator back into this state."""
        restore_torch((self.torch_cpu, self.devices))
        np.random.set_state(self.numpy)
        random.setstate(self.python)


def torch_generators() -> tuple[Tensor, tuple[Tensor, ...]]:
    """Read the states of torch's generators only; about 1 us on the CPU."""
    return torch.get_rng_state(), _device_states()


def restore_torch(states: tuple[Tensor, tuple[Tensor, ...]]) -> None:
    """Put torch's generators back into a state."""
    torch.set_rng_state(states[0])
    if not states[1]:
        return
    with hidden_from_modes():  # a backend may do this in Python, with ops
        for index, state in enumerate(states[1]):
            _device_module().set_rng_state(state, index)


def _device_states() -> tuple[Tensor, ...]:
    if not torch.accelerator.is_available():
        return ()
    module = _device_module()
    if not getattr(module, "is_initialized", lambda: True)():
        return ()  # reading them would initialize the device
    with hidden_from_modes():
        return tuple(module.get_rng_state(index) for index in range(torch.accelerator.device_count()))


def _device_module() -> Any:
    return torch.get_device_module(torch.accelerator.current_accelerator())
