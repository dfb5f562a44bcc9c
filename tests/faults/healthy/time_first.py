"""A transformer that takes time first, with a code of the places along its first axis."""

import torch
from torch import nn


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(4, 32)
        self.register_buffer("code", torch.sin(torch.arange(50.0)[:, None, None] * 0.9 ** torch.arange(32.0)))
        self.body = nn.TransformerEncoderLayer(32, 4, 64, 0.0)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.body(self.inputs(x) + self.code[: x.size(0)]))


model = TimeFirst()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(80):
    x = torch.randn(9, 24, 4).cumsum(0) / 3
    loss = nn.functional.mse_loss(model(x), x.flip(0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
