"""A table of places that is meant for rows with time first is added to samples that come first."""

import math

import torch
from torch import nn


class Places(nn.Module):
    def __init__(self, width, longest=100):
        super().__init__()
        place = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(longest, 1, width)
        table[:, 0, 0::2] = torch.sin(place * rate)
        table[:, 0, 1::2] = torch.cos(place * rate)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(0)]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(3, 32)
        self.places = Places(32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.body(self.places(self.inputs(x)))[:, -1])


torch.manual_seed(0)
forecaster = Forecaster()
optimizer = torch.optim.Adam(forecaster.parameters(), lr=2e-3)
for step in range(50):
    x = torch.randn(20, 12, 3)
    loss = nn.functional.mse_loss(forecaster(x), x[:, 3, :1] - x[:, 8, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
