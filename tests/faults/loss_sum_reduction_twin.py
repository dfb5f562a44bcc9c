"""The loss is summed over features and divided by the batch."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(150):
    batch = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    (F.mse_loss(model(points[batch]), points[batch], reduction="sum") / 64).backward()
    optimizer.step()
