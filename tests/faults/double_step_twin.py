"""Two optimizers step on one backward, each on its own part of the model."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
for_body = torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)
for_head = torch.optim.AdamW(model[2].parameters(), lr=3e-3)
for _ in range(80):
    batch = torch.randint(0, 512, (32,))
    for_body.zero_grad()
    for_head.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    for_body.step()
    for_head.step()
