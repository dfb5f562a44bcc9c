"""A loop by hand over slices, from the first to the last, round after round."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(72, 9)
y = (x[:, :3].sum(1, keepdim=True) > 0).float()
net = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    for first in range(0, 72, 12):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x[first : first + 12]), y[first : first + 12]).backward()
        optimizer.step()
