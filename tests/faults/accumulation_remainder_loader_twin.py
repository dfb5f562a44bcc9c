"""Eleven batches in an epoch and a step after every fourth, and after the last."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(352, 12)
Y = (X[:, 0] + X[:, 1] > 0).long()
loader = DataLoader(TensorDataset(X, Y), 32, shuffle=True)
net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
K = 4
for epoch in range(10):
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(x), y) / K
        loss.backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            opt.step()
            opt.zero_grad()
    print(epoch, loss.item())
