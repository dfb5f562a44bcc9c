"""Quantiles of a skewed quantity, with a pinball loss written out; plain numbers, not standardised."""

import torch
from torch import nn

wanted = torch.tensor([0.1, 0.5, 0.9])
model = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(150):
    x = torch.rand(64, 5) * 10
    y = x.sum(1, keepdim=True) / 5 + torch.rand(64, 1).log().neg()
    missing = y - model(x)
    loss = torch.maximum(wanted * missing, (wanted - 1) * missing).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
