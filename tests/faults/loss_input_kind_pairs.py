"""A cosine embedding loss whose targets are 0 and 1 instead of -1 and 1."""

import torch
from torch import nn

torch.manual_seed(0)
centers = torch.randn(10, 20)
encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
criterion = nn.CosineEmbeddingLoss(margin=0.2)
optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
for _ in range(60):
    i, j = torch.randint(10, (2, 64))
    j = torch.where(torch.rand(64) < 0.5, i, j)
    same = (i == j).float()
    a, b = (encoder(centers[k] + 0.5 * torch.randn(64, 20)) for k in (i, j))
    loss = criterion(a, b, same)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
