"""A body is trained, a new head on the frozen body, and then both by a third optimizer."""

import torch
import torch.nn.functional as F
from torch import nn

body = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
model = nn.Sequential(body, nn.Linear(16, 5))


def train(optimizer, num_steps, num_classes):
    for _ in range(num_steps):
        x = torch.randn(32, 12)
        loss = F.cross_entropy(model(x), x[:, :num_classes].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train(torch.optim.Adam(model.parameters(), lr=3e-3), 40, 5)
model[1] = nn.Linear(16, 3)
body.requires_grad_(False)
train(torch.optim.Adam(model[1].parameters(), lr=3e-3), 30, 3)
body.requires_grad_(True)
train(torch.optim.Adam(model.parameters(), lr=1e-3), 60, 3)
