"""One step of noise for the whole batch, another in each step, and a mask of one row."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 6))
        self.level = nn.Linear(1, 48)

    def forward(self, x, level, mask):
        h = torch.nn.functional.silu(self.body[0](x * mask) + self.level(level))
        return self.body[2](h)


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
mask = torch.ones(1, 6)
for step in range(120):
    clean, noise = torch.randn(32, 1).expand(-1, 6), torch.randn(32, 6)
    level = torch.rand(1, 1) * 0.5 + 0.5
    loss = nn.functional.mse_loss(model(clean + level * noise, level, mask), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
