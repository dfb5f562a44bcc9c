"""Noisy labels: the loss falls in a few steps and then stays at its floor."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
noisy = torch.where(torch.rand(512) < 0.5, torch.randint(0, 4, (512,)), labels)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(400):
    batch = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), noisy[batch]).backward()
    optimizer.step()
