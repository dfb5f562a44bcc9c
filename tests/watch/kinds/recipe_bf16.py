"""A recipe of roundoff's own: bf16."""

import sys

import torch
from torch import nn

import roundoff

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = roundoff.apply_recipe(model, optimizer, "bf16")
for step in range(50):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.backward(loss)
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
