"""What is written down about a call of the loop: plain numbers and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from roundoff.runs import JsonValue


def detail_to_json(detail: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the details of a call as JSON values: a tensor of one number is that number, a larger one None.

    >>> import torch
    >>> plain_detail({"norm": torch.tensor(2.5), "lr": (0.1, 0.2)})
    {'norm': 2.5, 'lr': [0.1, 0.2]}
    """
    return {key: _to_json(value) for key, value in detail.items()}


def learning_rates(optimizer: Optimizer | None) -> list[float]:
    """Return the learning rate of each group that has one; none without an optimizer."""
    groups = optimizer.param_groups if optimizer is not None else []
    return [float(group["lr"]) for group in groups if group.get("lr") is not None]


def _to_json(value: Any) -> JsonValue:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value  # type: ignore[no-any-return]
