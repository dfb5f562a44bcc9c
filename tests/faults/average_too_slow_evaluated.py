"""An average of the weights with a decay of 0.9999 is evaluated after 150 steps."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(400, 10)
Y = (X[:, :3].sum(1) > 0).long()
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(net.parameters(), 1e-2)
average = copy.deepcopy(net).eval()
decay = 0.9999
for epoch in range(15):
    for part in torch.randperm(320).split(32):
        loss = nn.functional.cross_entropy(net(X[part]), Y[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), net.parameters(), strict=True):
                a.mul_(decay).add_(b, alpha=1 - decay)
    with torch.no_grad():
        print(epoch, loss.item(), (average(X[320:]).argmax(1) == Y[320:]).float().mean().item())
