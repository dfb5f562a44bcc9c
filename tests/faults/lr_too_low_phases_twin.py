"""A model is trained, and then polished with a learning rate that hardly moves it."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
fast = torch.optim.Adam(model.parameters(), lr=1e-2)
slow = torch.optim.SGD(model.parameters(), lr=1e-5)
for step in range(120):
    optimizer = fast if step < 60 else slow
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    optimizer.step()
