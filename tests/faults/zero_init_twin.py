"""Zeros that are meant: the head, the last layer of each residual branch, one factor of a low-rank update."""

import torch
from torch import nn


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)
        self.a = nn.Parameter(torch.randn(32, 2) * 0.1)
        self.b = nn.Parameter(torch.zeros(2, 32))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x))) + x @ self.a @ self.b


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), Branch(), Branch(), nn.Linear(32, 4))
nn.init.zeros_(model[4].weight)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))
for step in range(60):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm_up.step()
