"""Evaluation in between, with a frozen body in eval mode on purpose."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
body = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU())
body(points)
body.eval().requires_grad_(False)
head = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
for step in range(90):
    head.train()
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(head(body(points[batch])), labels[batch]).backward()
    optimizer.step()
    if step % 30 == 29:
        head.eval()
        with torch.no_grad():
            F.cross_entropy(head(body(points)), labels)
