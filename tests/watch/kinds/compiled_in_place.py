"""A model compiled in place, with batch norm and dropout."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
model.compile(backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
