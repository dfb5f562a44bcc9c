"""A ranking loss on pairs whose order was thrown away when they were read."""

import torch
from torch import nn

torch.manual_seed(10)
scorer = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.AdamW(scorer.parameters(), lr=1e-3)
for step in range(260):
    better, worse = torch.randn(2, 32, 12)
    loss = nn.functional.softplus(scorer(worse) - scorer(better)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
