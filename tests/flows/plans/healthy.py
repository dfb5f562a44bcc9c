"""A small net that trains in fp16 as it does in fp32."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import roundoff

net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
net, optimizer = roundoff.apply_recipe(net, torch.optim.SGD(net.parameters(), lr=0.1), "fp32")
for _ in range(int(sys.argv[1])):
    x = torch.randn(64, 16)
    loss = F.cross_entropy(net(x).float(), x[:, :4].argmax(1))
    optimizer.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
