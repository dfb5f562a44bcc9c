"""The loss is a sum over the batch."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss(reduction="sum")
for _ in range(80):
    batch = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    criterion(model(points[batch]), labels[batch]).backward()
    optimizer.step()
