"""Constants that are meant: a scale for each branch, a bias, a table of positions; with a warm-up from 0."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.scale = nn.Parameter(torch.full((24, 1), 1e-2))

    def forward(self, x):
        return x + self.mix(x) * self.scale.t()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(6, 24))
        self.embed = nn.Linear(8, 24)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(24, 3)
        nn.init.constant_(self.embed.bias, 0.1)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x) + self.positions).mean(1))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
for step in range(60):
    x = torch.randn(16, 6, 8)
    loss = nn.functional.cross_entropy(model(x), x.mean(1)[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm_up.step()
