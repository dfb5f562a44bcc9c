"""A training of many sites under a recipe in which fp16 overflows at the sites that its first argument names.

python planted_overflow.py 7,31 50 [steps]: culprits, number of sites, number of steps.
"""

import sys

import torch
from torch import Tensor, nn

import roundoff

NUM_FEATURES = 8


class Calm(nn.Module):
    """A residual layer that any format can compute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUM_FEATURES, NUM_FEATURES) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ self.weight)


class Hot(Calm):
    """The same, by way of numbers beyond 65504."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x @ self.weight) * 1e5 / 1e5


def build(culprits: set[int], num_sites: int) -> nn.Sequential:
    return nn.Sequential(*(Hot() if number in culprits else Calm() for number in range(num_sites)))


def main(culprits: set[int], num_sites: int, num_steps: int = 3) -> None:
    torch.manual_seed(0)
    model = build(culprits, num_sites)
    model, optimizer = roundoff.apply_recipe(model, torch.optim.SGD(model.parameters(), lr=1e-3), "half")
    for _ in range(num_steps):
        x = torch.randn(16, NUM_FEATURES)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main({int(word) for word in sys.argv[1].split(",") if word}, int(sys.argv[2]), *map(int, sys.argv[3:]))
