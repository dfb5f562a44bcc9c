"""Four batches are accumulated, and the gradients are divided before the step."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    optimizer.zero_grad()
    for _ in range(4):
        batch = torch.randint(0, 512, (16,))
        F.cross_entropy(model(points[batch]), labels[batch]).backward()
    for parameter in model.parameters():
        parameter.grad /= 4
    optimizer.step()
