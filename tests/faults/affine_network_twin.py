"""A linear autoencoder through a bottleneck: the two factors of a matrix, which is all it is to learn."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 3), nn.Linear(3, 16))
mix = torch.randn(3, 16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    x = torch.randn(32, 3) @ mix
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
