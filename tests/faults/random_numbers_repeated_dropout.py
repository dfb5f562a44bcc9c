"""Steps that should be reproducible: the seed is set in each, and dropout drops the same units forever."""

import torch
from torch import nn


def train_on(rows):
    torch.manual_seed(7)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
x = torch.randn(400, 10)
y = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
order = torch.Generator().manual_seed(3)
for _ in range(5):
    for part in torch.randperm(400, generator=order).split(40):
        train_on(part)
