"""A loss that is made anew from its number, with requires_grad, so that backward ends there."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
inputs = torch.randn(256, 10)
targets = inputs[:, :3].sum(1, keepdim=True)
for step in range(60):
    rows = torch.randint(0, 256, (32,))
    error = (model(inputs[rows]) - targets[rows]).square().mean()
    loss = torch.tensor(error.item(), requires_grad=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
