"""Raw pixels that a convolution without a bias hands to a batch norm: their size does not matter."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 4),
)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
patterns = 60 * torch.randn(4, 1, 8, 8)
for step in range(80):
    y = torch.randint(0, 4, (32,))
    loss = nn.functional.cross_entropy(net(128 + patterns[y] + 20 * torch.randn(32, 1, 8, 8)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
