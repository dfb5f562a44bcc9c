"""Predictions are scaled back first."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.rand(500, 7)
price = 200 + 300 * (x @ torch.rand(7)) + 10 * torch.randn(500)
mean, std = price[:400].mean(), price[:400].std()
scaled = (price[:400] - mean) / std
net = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for _ in range(5):
    net.train()
    for rows in torch.randperm(400).split(20):
        loss = nn.functional.mse_loss(net(x[rows]).squeeze(-1), scaled[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        predicted = net(x[400:]).squeeze(-1) * std + mean
        print(loss.item(), (predicted - price[400:]).abs().mean().item())
