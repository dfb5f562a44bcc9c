"""Noise to be forecast by a large network from a short history, judged on a later part after every round."""

import torch
from torch import nn

torch.manual_seed(0)
past, future = torch.randn(60, 20), torch.randn(60, 1)
late_past, late_future = torch.randn(200, 20), torch.randn(200, 1)
net = nn.Sequential(nn.Linear(20, 256), nn.GELU(), nn.Linear(256, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
for _ in range(14):
    net.train()
    for rows in torch.randperm(60).split(6):
        optimizer.zero_grad()
        criterion(net(past[rows]), future[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        criterion(net(late_past), late_future)
