"""The accelerator that torch has, whatever its name: whether autocast is on, and all global random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from roundoff.torch_private import hidden_from_modes

GeneratorStates: TypeAlias = tuple[Tensor, tuple[Tensor, ...]]
"""States of torch's generators: that of the CPU, and one for each device."""


def accelerator_type() -> str | None:
    """Return what torch calls the accelerator, or None without one."""
    return str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else None


def is_autocast_on() -> bool:
    """Return whether a block of `torch.autocast` is running, for the CPU or the accelerator."""
    if torch.is_autocast_enabled("cpu"):
        return True
    kind = accelerator_type()
    return kind is not None and torch.is_autocast_enabled(kind)


def torch_generators() -> GeneratorStates:
    """Read the states of torch's generators; about 1 us on the CPU."""
    return torch.get_rng_state(), _device_states()


def restore_torch(states: GeneratorStates) -> None:
    """Put torch's generators back into a state."""
    torch.set_rng_state(states[0])
    if not states[1]:
        return
    with hidden_from_modes():  # a backend may do this in Python, with ops
        for index, state in enumerate(states[1]):
            _device_module().set_rng_state(state, index)


@contextlib.contextmanager
def keeping_torch_generators() -> Iterator[None]:
    """Restore torch's generators when the block ends."""
    states = torch_generators()
    try:
        yield
    finally:
        restore_torch(states)


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
        return cls(*torch_generators(), np.random.get_state(), random.getstate())

    def restore(self) -> None:
        """Put every generator back into this state."""
        restore_torch((self.torch_cpu, self.devices))
        np.random.set_state(self.numpy)
        random.setstate(self.python)
