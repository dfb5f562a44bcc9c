"""A denoiser that trains on noise of very different sizes and is asked to remove the largest."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(150):
    clean = torch.randn(64, 1).sign().expand(64, 8) + 0.1 * torch.randn(64, 8)
    size = 10 ** (torch.rand(1) * 2 - 1)
    noisy = clean + size * torch.randn(64, 8)
    loss = nn.functional.mse_loss(model.train()(noisy / (1 + size)), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    model.eval()(torch.randn(64, 8) * 5)
