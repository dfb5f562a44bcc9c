"""Noise in the forward that no generator of torch, numpy or random knows of."""

import os

import torch
from torch import nn


class Noise(nn.Module):
    def forward(self, x):
        drawn = torch.frombuffer(bytearray(os.urandom(x.numel())), dtype=torch.uint8).view(x.shape)
        return x + 0.1 * (drawn / 127.5 - 1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), Noise(), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
