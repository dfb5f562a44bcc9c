"""Whether a tensor still has the values a layer starts with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST_VALUES = 64
"""Fewer values do not show what they were drawn from."""
ENOUGH_VALUES = 1 << 20
LARGEST_OF_UNIFORM = 1.8
"""The largest magnitude of uniform values over their standard deviation is at most sqrt(3)."""
LEAST_OF_NORMAL = 2.2


def fresh_start(values: Tensor) -> str | None:
    """Name the initialiser that values of PyTorch's layout look drawn from, or None.

    What a training has moved far hardly ever looks so; what it has moved little does: hold it against a reference, too.

    >>> fresh_start(torch.full((8,), 1.0))
    'every value is 1'
    >>> fresh_start(torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) / 4 - 1 / 8)
    >>> fresh_start((torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1) / 32**0.5)
    'uniform within 1/sqrt(inputs), as PyTorch starts'
    """
    constant = constant_value(values)
    if constant is not None:
        return f"every value is {constant:g}"
    if values.ndim < 2 or values.numel() < LEAST_VALUES or not values.is_floating_point():
        return None
    wide = values.reshape(-1)[:ENOUGH_VALUES].to(torch.float64)
    std, mean, largest = float(wide.std()), float(wide.mean()), float(wide.abs().max())
    if not (std and math.isfinite(largest)) or abs(mean) > 5 * std / math.sqrt(wide.numel()):
        return None
    tolerance = max(0.01, 3 / math.sqrt(2 * wide.numel()))
    if largest < LARGEST_OF_UNIFORM * std:
        return _nearest(std, _uniform_stds(values), tolerance)
    return _nearest(std, _normal_stds(values), tolerance) if largest > LEAST_OF_NORMAL * std else None


def constant_value(values: Tensor) -> float | None:
    """Return the one value that a tensor has everywhere, or None; a single number is none."""
    flat = values.reshape(-1)
    if values.numel() < 2 or bool((flat[:LEAST_VALUES] != flat[0]).any()):  # most are told apart by their beginning
        return None
    return float(flat[0]) if bool((flat == flat[0]).all()) else None


def _nearest(std: float, known: dict[str, float], tolerance: float) -> str | None:
    name = min(known, key=lambda each: abs(std / known[each] - 1))
    return name if abs(std / known[name] - 1) < tolerance else None


def _uniform_stds(values: Tensor) -> dict[str, float]:
    inputs, outputs = _fans(values)
    return {
        "uniform within 1/sqrt(inputs), as PyTorch starts": 1 / math.sqrt(3 * inputs),
        "Xavier's uniform start": math.sqrt(2 / (inputs + outputs)),
        "He's uniform start": math.sqrt(2 / inputs),
        "LeCun's uniform start": math.sqrt(1 / inputs),
        "uniform within 0.05, as Keras starts embeddings": 0.05 / math.sqrt(3),
    }


def _normal_stds(values: Tensor) -> dict[str, float]:
    inputs, outputs = _fans(values)
    return {
        "normal of deviation 1, as embeddings start": 1.0,
        "normal of deviation 0.02": 0.02,
        "normal of deviation 0.01": 0.01,
        "Xavier's normal start": math.sqrt(2 / (inputs + outputs)),
        "He's normal start": math.sqrt(2 / inputs),
        "He's normal start by outputs": math.sqrt(2 / outputs),
        "LeCun's normal start": math.sqrt(1 / inputs),
    }


def _fans(values: Tensor) -> tuple[int, int]:
    """Return how many values one output is made of, and in how many one input goes."""
    window = math.prod(values.shape[2:])
    return values.shape[1] * window, values.shape[0] * window
