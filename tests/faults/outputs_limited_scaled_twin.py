"""Cosines with one vector per class, halved and then multiplied by a scale of 30."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
samples = torch.randn(512, 32)
labels = (samples @ torch.randn(32, 5)).argmax(1)
classes = nn.Parameter(torch.randn(5, 32))
encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam([*encoder.parameters(), classes], lr=1e-3)
for step in range(120):
    rows = torch.randint(0, 512, (64,))
    cosines = F.normalize(encoder(samples[rows]), dim=-1) @ F.normalize(classes, dim=-1).T
    loss = F.cross_entropy(cosines * 0.5 * 30, labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
