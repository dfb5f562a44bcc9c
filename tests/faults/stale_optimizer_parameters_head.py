"""A head that is replaced after the optimizer was built."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential()
model.add_module("body", nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()))
model.add_module("head", nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model.head = nn.Linear(32, 4)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
