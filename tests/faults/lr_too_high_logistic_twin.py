"""A logistic regression that begins at 0: its first update is all there is."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Linear(16, 4)
nn.init.zeros_(model.weight)
nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(80):
    batch = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    optimizer.step()
