"""Dropout after the last layer of a regression."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 10)
y = x @ torch.randn(10, 1) * 2 + 5
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Dropout(0.3))
optimizer = torch.optim.Adam(net.parameters(), 5e-3)
for _ in range(5):
    net.train()
    for rows in torch.randperm(300).split(20):
        loss = nn.functional.mse_loss(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(loss.item(), nn.functional.mse_loss(net(x[300:]), y[300:]).item())
