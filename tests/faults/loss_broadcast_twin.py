"""Shapes that broadcast on purpose: a scalar target, weights by class, distances between all pairs."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
embed = nn.Linear(8, 5)
optimizer = torch.optim.Adam([*encoder.parameters(), *embed.parameters()], lr=3e-3)
weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0])
for step in range(60):
    x = torch.randn(16, 8)
    scores = encoder(x)
    adversarial = ((scores - torch.ones(())) ** 2).mean()
    codes = embed(x)
    pairs = (codes[:, None] - codes[None]).square().sum(-1)
    attraction = F.mse_loss(pairs, torch.cdist(x, x).square())
    weighted = (weights * (codes - x[:, :5]) ** 2).mean()
    supervised = F.mse_loss(scores, x.sum(1, keepdim=True))
    optimizer.zero_grad()
    (0.01 * adversarial + 0.01 * attraction + weighted + supervised).backward()
    optimizer.step()
