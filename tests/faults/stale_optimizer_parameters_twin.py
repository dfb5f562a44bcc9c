"""A head that is replaced half-way, and an optimizer that gets its parameters."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 10))
model[2] = nn.Linear(32, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    if step == 20:
        model[2] = nn.Linear(32, 4)
        optimizer.param_groups[0]["params"] = list(model.parameters())
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
