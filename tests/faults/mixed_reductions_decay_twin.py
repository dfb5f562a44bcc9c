"""A mean error and a sum over the weights, which does not depend on the batch."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(80):
    x = torch.randn(32, 8)
    error = F.mse_loss(model(x), x[:, :2].sum(1, keepdim=True).sin())
    size = sum((weight**2).sum() for weight in model.parameters())
    loss = error + 1e-4 * size
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
