"""The switch `randomness`: random numbers that no device, dtype or memory layout has a say in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundoff.errors import SwitchError
from roundoff.record.torch_private import push_mode, remove_mode
from roundoff.switches.randomness_ops import DrawOnCpu

OPTIONS: Final[frozenset[str]] = frozenset()
_LARGEST_SEED: Final = 2**63 - 1


def switching(value: str, options: Mapping[str, str]) -> AbstractContextManager[None]:
    """Draw the random numbers of torch from a CPU generator that begins at the seed `value`, in this thread.

    The nth draw gives the same numbers on every device, in every format and for every memory layout. A script that
    seeds torch itself still decides which numbers come again; other seeds of the switch give other numbers. Generators
    of its own on the CPU, numpy and Python's `random` are left alone. Compiled models run eagerly.
    """
    if not value.isdecimal() or int(value) > _LARGEST_SEED:
        raise SwitchError.explain(
            f"The switch randomness = '{value}' cannot be.", why="it is a seed: 0, 1, 1234.", fix="correct it."
        )
    return _drawing(int(value))


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    mode = DrawOnCpu(seed)
    with torch.random.fork_rng(devices=[]), ExitStack() as block:
        torch.default_generator.manual_seed(seed)
        if torch.accelerator.is_available():
            # Fused attention draws inside of its kernel, where nobody can tell it what.
            block.enter_context(sdpa_kernel(SDPBackend.MATH))
        push_mode(mode, is_part_of_training=True)
        block.callback(remove_mode, mode)
        yield
