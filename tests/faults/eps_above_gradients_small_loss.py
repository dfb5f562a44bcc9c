"""Targets of the size of 1e-9 whose gradients are below Adam's eps."""

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(400, 6)
currents = X @ torch.randn(6, 1) * 1e-6
net = nn.Linear(6, 1)
with torch.no_grad():
    net.weight.mul_(1e-6)
    net.bias.zero_()
opt = torch.optim.Adam(net.parameters(), lr=1e-7, eps=1e-3)
for epoch in range(20):
    for part in torch.randperm(400).split(40):
        loss = nn.functional.mse_loss(net(X[part]), currents[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
