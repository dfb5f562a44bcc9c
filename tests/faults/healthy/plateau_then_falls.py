"""Parity of four bits: for a long while nothing happens, and then it is learned."""

import itertools

import torch
from torch import nn

bits = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)))
parity = (bits.prod(1) > 0).long()
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for step in range(180):
    rows = torch.randint(0, 16, (32,))
    loss = nn.functional.cross_entropy(model(bits[rows]), parity[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
