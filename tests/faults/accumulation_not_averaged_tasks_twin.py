"""Three losses of one batch, each with a backward of its own."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
body = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
heads = nn.ModuleList([nn.Linear(64, 4), nn.Linear(64, 2), nn.Linear(64, 1)])
optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=3e-3)
for _ in range(60):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(heads[0](body(points[batch])), labels[batch]).backward()
    F.cross_entropy(heads[1](body(points[batch])), labels[batch] % 2).backward()
    F.mse_loss(heads[2](body(points[batch]))[:, 0], points[batch].mean(1)).backward()
    optimizer.step()
