"""A model and its optimizer made anew half-way, wider, with some of the old weights."""

import sys

import torch
from torch import nn


def built(width):
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


torch.manual_seed(0)
model, optimizer = built(16)
for step in range(50):
    if step == 25:
        old = model
        model, optimizer = built(32)
        with torch.no_grad():
            model[0].weight[:16] = old[0].weight
        del old
    if step == 35:
        model[2] = nn.Linear(32, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
