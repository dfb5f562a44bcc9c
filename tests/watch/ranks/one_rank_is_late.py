"""Two ranks that train each for itself: rank 0 fails in its second step, before rank 1 has begun its first."""

import os
import time

import torch
from torch import nn

rank = int(os.environ["RANK"])
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
time.sleep(4 * rank)
for step in range(3):
    if step == 1 and rank == 0:
        raise ValueError("no second batch")
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
