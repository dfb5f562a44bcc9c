"""The gradients are never cleared."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    batch = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(points[batch]), labels[batch])
    loss.backward()
    optimizer.step()
