"""fp16 weights with Adam: eps rounds to 0, and where a gradient is 0 the update is 0 / 0."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(12):
    x = torch.randn(16, 8)
    x[:, 3] = 0
    loss = nn.functional.cross_entropy(model(x.half()).float(), torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # here
