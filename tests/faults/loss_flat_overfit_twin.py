"""One batch is learnt by heart, and the loss stays at nothing for long."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(400):
    optimizer.zero_grad()
    F.cross_entropy(model(points[:32]), labels[:32]).backward()
    optimizer.step()
