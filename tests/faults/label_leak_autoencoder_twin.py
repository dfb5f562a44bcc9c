"""An autoencoder: its target is its input, through a waist of four numbers."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4), nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
mixing = torch.randn(4, 32) / 2
for _ in range(120):
    x = torch.randn(32, 4) @ mixing
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
