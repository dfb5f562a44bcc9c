"""Gradients of a convolutional net over time, clipped before backward has computed them."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
layers = [nn.Conv1d(2, 16, 3, dilation=2), nn.ReLU(), nn.Conv1d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1)]
model = nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    x = torch.rand(32, 2, 24)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x[:, 0, :8].sum(1, keepdim=True))
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    loss.backward()
    optimizer.step()
