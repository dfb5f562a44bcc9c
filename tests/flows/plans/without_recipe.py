"""A loop that knows nothing of recipes."""

import torch
from torch import nn
from torch.nn import functional as F

net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(20):
    x = torch.randn(64, 16)
    optimizer.zero_grad()
    F.cross_entropy(net(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
