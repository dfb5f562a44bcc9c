"""Every norm is put into eval mode before each step, as with a body that was trained before; this one was not."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential()
net.add_module("lift", nn.Linear(10, 40))
net.add_module("norm", nn.BatchNorm1d(40))
net.add_module("gate", nn.LeakyReLU())
net.add_module("out", nn.Linear(40, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for _ in range(40):
    net.train()
    for part in net.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
    x = torch.randn(20, 10) * 3
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
