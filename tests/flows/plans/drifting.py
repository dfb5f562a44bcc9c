"""Trains well in fp16 at first, while what one layer makes grows a little in every step; with 1.0 it does not grow."""

import sys

import torch
from torch import Tensor, nn

import roundoff


class Gain(nn.Module):
    def __init__(self, growth: float) -> None:
        super().__init__()
        self.growth, self.num_calls = growth, 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return x * self.growth**self.num_calls


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), Gain(float(sys.argv[1])), nn.LayerNorm(16), nn.Linear(16, 1))
model, optimizer = roundoff.apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.01), "O2")
for _ in range(90):
    x = torch.randn(32, 8)
    optimizer.backward((model(x) - x.sum(1, keepdim=True)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
print(model.training, optimizer.recipe.name)
