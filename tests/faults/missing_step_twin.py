"""Saliency maps of a fixed model: backward without an optimizer."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
total = torch.zeros(16)
for _ in range(40):
    batch = torch.randint(0, 512, (32,))
    x = points[batch].requires_grad_()
    model.zero_grad()
    F.cross_entropy(model(x), labels[batch]).backward()
    total += x.grad.abs().sum(0)
print(total)
