"""The head is trained first; the optimizer of the body waits for a phase that this run does not reach."""

import torch
from torch import nn

x = torch.randn(512, 20)
y = (x[:, :4].sum(1) > 0).long()
body = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
net = nn.Sequential(body, nn.Linear(32, 2))
of_head = torch.optim.Adam(net[1].parameters(), lr=1e-2)
of_body = torch.optim.Adam(body.parameters(), lr=1e-3)
for epoch in range(4):
    optimizer = of_head if epoch < 5 else of_body
    for batch in torch.randperm(512).split(32):
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        net.zero_grad()
        loss.backward()
        optimizer.step()
