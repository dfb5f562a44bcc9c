"""A network learns to tell the noise that was added to its input: the targets are random by design."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 32)
        self.first, self.second, self.out = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x, t):
        h = (self.first(x) + self.time(t)).relu()
        return self.out(self.second(h).relu())


kept = torch.linspace(0.99, 0.02, 50)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(240):
    angle = torch.rand(64) * 6.283
    points = torch.stack([angle.cos(), angle.sin()], -1) * 2
    t = torch.randint(0, 50, (64,))
    noise = torch.randn_like(points)
    noisy = kept[t, None].sqrt() * points + (1 - kept[t, None]).sqrt() * noise
    loss = nn.functional.mse_loss(model(noisy, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
