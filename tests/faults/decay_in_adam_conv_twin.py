"""A weight decay that is meant for AdamW, in AdamW."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


torch.manual_seed(0)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
patterns = torch.randn(5, 3, 8, 8)
for i in range(150):
    y = torch.randint(0, 5, (32,))
    loss = nn.functional.cross_entropy(net(patterns[y] + torch.randn(32, 3, 8, 8)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 20 == 0:
        print(i, loss.item())
