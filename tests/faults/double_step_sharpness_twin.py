"""Sharpness-aware steps: up, backward again, down, and one step of the optimizer."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(60):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    climbs = [0.05 * parameter.grad / norm for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, climb in zip(model.parameters(), climbs, strict=True):
            parameter += climb
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    with torch.no_grad():
        for parameter, climb in zip(model.parameters(), climbs, strict=True):
            parameter -= climb
    optimizer.step()
