"""A body that is trained, frozen for the sake of a new head, and unfrozen; the last optimizer has the head alone."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
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
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
train(optimizer, 30, 3)
body.requires_grad_(True)
train(optimizer, 60, 3)
