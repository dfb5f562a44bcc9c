"""A regression whose weights are meant to stay small, by a penalty that has become a Python number."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(40):
    x = torch.randn(32, 8)
    size = sum(parameter.square().sum().item() for parameter in model.parameters())
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True)) + 1e-3 * size
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
