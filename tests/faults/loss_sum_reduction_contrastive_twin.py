"""A contrastive loss: every sample is compared with all others of its batch."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
for _ in range(100):
    x = points[torch.randint(0, 512, (32,))]
    first = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    second = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    optimizer.zero_grad()
    F.cross_entropy(first @ second.T / 0.2, torch.arange(32)).backward()
    optimizer.step()
