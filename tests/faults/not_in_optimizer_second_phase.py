"""A body is trained to restore its input, then a head is put on it; the new optimizer still has the body alone."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(body.parameters(), lr=1e-3)
for _ in range(50):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    F.mse_loss(body(x + 0.1 * torch.randn_like(x)), x).backward()
    optimizer.step()
model = nn.Sequential(body, nn.Linear(8, 3))
optimizer = torch.optim.Adam(body.parameters(), lr=1e-3)
for _ in range(50):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
