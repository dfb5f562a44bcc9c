"""Another seed for a script that sets its own: what it asks for is shifted, so that trials show its noise."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def seeds_shifted(by: int) -> Iterator[None]:
    """Add `by` to every whole number that the generators of Python, numpy and torch are seeded with in the block.

    A generator object of the script's own (`torch.Generator`, `numpy.random.default_rng`) stays as it is.
    """
    if not by:
        yield
        return
    import numpy as np
    import torch

    places: list[tuple[Any, str]] = [
        (random, "seed"),
        (np.random, "seed"),
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
    ]
    with contextlib.ExitStack() as restoring:
        for module, name in places:
            original = getattr(module, name)
            restoring.callback(setattr, module, name, original)
            setattr(module, name, _shifted(original, by))
        yield


def _shifted(seed: Callable[..., Any], by: int) -> Callable[..., Any]:
    @functools.wraps(seed)
    def seed_with_another(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int):
            args = ((args[0] + by) % 2**32, *args[1:])
        kwargs = {key: (value + by) % 2**32 if isinstance(value, int) else value for key, value in kwargs.items()}
        return seed(*args, **kwargs)

    return seed_with_another
