"""An autoencoder that goes on from weights kept in memory, with SGD's momentum forgotten."""

import copy

import torch
from torch import nn


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 6))
        self.up = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 16))

    def forward(self, x):
        return self.up(self.down(x))


def train(model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(num_steps):
        x = torch.randn(64, 4) @ mix
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


torch.manual_seed(0)
mix = torch.randn(4, 16)
model = Coder()
train(model, 40)
kept = copy.deepcopy(model.state_dict())
model = Coder()
model.load_state_dict(kept)
train(model, 20)
