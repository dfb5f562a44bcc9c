"""Optimizers by name, with no weight decay where it does harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from roundoff.train.bert_adam import BertAdam
from roundoff.train.config import TrainConfig

_KINDS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "bert-adam": BertAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
_WITH_MOMENTUM = ("sgd", "rmsprop")


def build_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """Make the optimizer a training asks for, over the parameters of `model`."""
    options: dict[str, Any] = {"lr": config.peak_lr}
    if config.optimizer in _WITH_MOMENTUM:
        options["momentum"] = config.momentum
    if config.eps is not None:
        options["eps"] = config.eps
    groups = decay_groups(model.named_parameters(), weight_decay=config.weight_decay)
    return _KINDS[config.optimizer](groups, **options)


def decay_groups(named: Iterable[tuple[str, nn.Parameter]], *, weight_decay: float) -> list[dict[str, Any]]:
    """Divide parameters into those that decay and those that do not: biases and the parameters of norms.

    These are the ones with a single dimension: shrinking them shrinks no function, it only moves it.
    """
    trained = [parameter for _, parameter in named if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
