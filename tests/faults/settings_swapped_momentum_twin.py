"""A small momentum beside a small learning rate."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 256)[:, None]
y = torch.sin(3 * x)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.05)
for epoch in range(30):
    for part in torch.randperm(256).split(32):
        loss = nn.functional.mse_loss(net(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
