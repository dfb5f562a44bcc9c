"""A network of sines under autocast, whose angles stay small, and steps of noise that become angles in fp32."""

import torch
from torch import nn


class Sines(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(2 + 8, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x, t):
        with torch.autocast("cpu", enabled=False):
            angles = t.float()[:, None] * 0.1 ** torch.arange(4)
            code = torch.cat([angles.sin(), angles.cos()], 1)
        h = torch.sin(3 * self.first(torch.cat([x, code], 1)))
        return self.out(torch.sin(self.second(h))).squeeze(1)


model = Sines()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(100):
    x, t = torch.rand(64, 2) * 2 - 1, torch.randint(0, 1000, (64,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = model(x, t)
    loss = nn.functional.mse_loss(predicted.float(), torch.sin(2 * x[:, 0]) * x[:, 1] + t / 1000)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
