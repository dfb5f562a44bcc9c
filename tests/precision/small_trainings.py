"""A small net, its data, and one way to train it, for every test of recipes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from roundoff.precision import RecipeOptimizer, apply_recipe
from roundoff.train.digits import load_digits

IMAGES, LABELS = load_digits()


def small_net(*, seed: int = 0, width: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def sgd(model: nn.Module, lr: float = 0.1) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def prepared(recipe: object, *, seed: int = 0, **settings: object) -> tuple[nn.Module, RecipeOptimizer]:
    model = small_net(seed=seed)
    return apply_recipe(model, sgd(model), recipe, **settings)


def batch_of(step: int, size: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    chosen = torch.randint(0, 1500, (size,), generator=generator)
    return IMAGES[chosen], LABELS[chosen]


def train(
    model: nn.Module,
    optimizer: RecipeOptimizer,
    steps: range,
    *,
    batch: Callable[[int], tuple[Tensor, Tensor]] = batch_of,
    loss_factor: float = 1.0,
) -> list[float]:
    losses = []
    model.train()
    for step in steps:
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y) * loss_factor
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, factor: float = 1.0) -> float:
    model.eval()
    return (model(IMAGES[1500:] * factor).argmax(1) == LABELS[1500:]).float().mean().item()


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])
