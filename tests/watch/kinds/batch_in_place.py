"""In-place ops on one buffer that holds every batch, and inside the graph."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.empty(16, 8)
for step in range(50):
    batch.normal_()
    batch.mul_(2).sub_(0.5)
    y = batch.argmax(1) % 4
    batch[batch < -1] = 0.0
    logits = model(batch.clone())
    logits[:, 0] += 0.1
    logits *= 1.5
    batch.zero_()
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
