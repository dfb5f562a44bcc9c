"""Noise that may repeat: fixed latents for a picture after each epoch, and steps with a seed of their own each."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(320, 6) @ torch.randn(6, 6)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
number = 0
for _ in range(6):
    for rows in torch.randperm(320).split(32):
        torch.manual_seed(100 + number)
        number += 1
        noisy = data[rows] + 0.1 * torch.randn(32, 6)
        loss = (model(noisy) - data[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shown = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
    model.eval()
    with torch.no_grad():
        model(data[:32] + 0.1 * shown)
    model.train()
