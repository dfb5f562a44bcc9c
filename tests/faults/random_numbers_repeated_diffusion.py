"""A denoiser of points: the seed is set before the noise of every step, so that it only ever sees one set of noise."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.cat([torch.randn(300, 2) * 0.1 + 1, torch.randn(300, 2) * 0.1 - 1])
keep = torch.linspace(0.99, 0.01, 50)
model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
order = torch.Generator().manual_seed(1)
for step in range(60):
    clean = data[torch.randint(0, 600, (48,), generator=order)]
    torch.manual_seed(42)
    time, noise = torch.randint(0, 50, (48,)), torch.randn(48, 2)
    noisy = keep[time].sqrt()[:, None] * clean + (1 - keep[time]).sqrt()[:, None] * noise
    loss = (model(torch.cat([noisy, time[:, None] / 50], dim=1)) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
