"""Predictions of shape (N, 1) and targets of shape (N,): the loss compares every prediction with every target."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 6)
y = x @ torch.randn(6) + 0.1 * torch.randn(512)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    rows = torch.randint(0, 512, (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
