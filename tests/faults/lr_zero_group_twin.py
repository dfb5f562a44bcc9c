"""One group is held still with a learning rate of 0, on purpose."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(
    [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "lr": 0.1},
    ]
)
for _ in range(80):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    optimizer.step()
