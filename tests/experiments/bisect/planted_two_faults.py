"""A training that fp16 spoils at two sites: 3 gives NaN at once, and 6, once that is mended, a loss that stays high.

python planted_two_faults.py
"""

import torch
from planted_overflow import NUM_FEATURES, Calm
from torch import Tensor, nn

import roundoff


class Hot(nn.Module):
    """Passes on what it is given, by way of numbers beyond 65504."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1e5 / 1e5


class Coarse(nn.Module):
    """Passes on what it is given, by way of numbers whose neighbours in fp16 are 16 away."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 30000) - 30000


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Calm(), Calm(), Calm(), Hot(), Calm(), Calm(), Coarse(), Calm())
    model, optimizer = roundoff.apply_recipe(model, torch.optim.SGD(model.parameters(), lr=1e-2), "half")
    for _ in range(5):
        x = torch.randn(64, NUM_FEATURES)
        loss = (model(x) - 2 * x).square().mean()
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
