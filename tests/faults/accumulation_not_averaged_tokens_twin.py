"""Microbatches of different length are summed and divided by the tokens of the whole step."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(60):
    sizes = torch.randint(8, 24, (4,)).tolist()
    optimizer.zero_grad()
    for size in sizes:
        batch = torch.randint(0, 512, (size,))
        (F.cross_entropy(model(points[batch]), labels[batch], reduction="sum") / sum(sizes)).backward()
    optimizer.step()
