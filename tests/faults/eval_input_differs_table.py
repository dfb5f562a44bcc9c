"""Columns are standardized for training, and scaled to 0 and 1 for the evaluation."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(800, 5) * torch.tensor([3.0, 40.0, 0.2, 7.0, 1.0]) + torch.tensor([10.0, 200.0, 1.0, -5.0, 0.0])
y = ((x[:, 0] - 10) / 3 + (x[:, 1] - 200) / 40 > 0).long()
mean, std = x[:600].mean(0), x[:600].std(0)
train, test = (x[:600] - mean) / std, x[600:]
test = (test - test.amin(0)) / (test.amax(0) - test.amin(0))
net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), 5e-3)
for _ in range(5):
    for rows in torch.randperm(600).split(30):
        loss = nn.functional.cross_entropy(net(train[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(loss.item(), (net(test).argmax(1) == y[600:]).float().mean().item())
    net.train()
