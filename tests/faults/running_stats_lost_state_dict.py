"""The buffers of the best model are loaded again after each step, weights stay."""

import copy

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 12, 3)
        self.bn = nn.BatchNorm1d(12)
        self.top = nn.Linear(12, 4)

    def forward(self, x):
        return self.top(torch.relu(self.bn(self.stem(x))).mean(-1))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
best = copy.deepcopy(dict(net.named_buffers()))
for _ in range(60):
    x = torch.randn(16, 2, 14) + 2
    loss = nn.functional.cross_entropy(net(x), (x.mean(-1) > 2).long().sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        net.bn.running_mean.copy_(best["bn.running_mean"])
        net.bn.running_var.copy_(best["bn.running_var"])
print(loss.item())
