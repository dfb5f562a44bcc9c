"""Fused attention with dropout_p, whatever the mode of the model."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        parts = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, dropout_p=0.3)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(5, 16)
        self.mix = Attention(16, 2)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        x = self.lift(x)
        return self.head((x + self.mix(x)).amax(1))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(50):
    x = torch.randn(20, 6, 5)
    optimizer.zero_grad()
    F.cross_entropy(net(x), (x[..., 0].amax(1) > 1.2).long()).backward()
    optimizer.step()
