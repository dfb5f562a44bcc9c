"""A weight decay of 10 in AdamW."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv1d(2, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=10)
t = torch.arange(40) / 40
for i in range(200):
    y = torch.randint(0, 2, (32,))
    angle = 6.28 * (3 + 5 * y[:, None]) * t
    x = torch.stack([torch.sin(angle), torch.cos(angle)], 1) + 0.3 * torch.randn(32, 2, 40)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 25 == 0:
        print(i, loss.item())
