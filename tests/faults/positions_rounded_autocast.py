"""Places times rates, a matrix product, under autocast: both are rounded to bf16 before they are multiplied."""

import torch
from torch import nn


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 1.0 / 100.0 ** (torch.arange(8) / 8))
        self.body = nn.Sequential(nn.Linear(17, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, values):
        places = torch.arange(values.shape[1]).float()
        turned = places[:, None] @ self.rates[None, :]
        code = torch.cat([turned.sin(), turned.cos()], 1).expand(len(values), -1, -1)
        return self.body(torch.cat([values[..., None], code], -1)).squeeze(-1)


torch.manual_seed(0)
series = Series()
optimizer = torch.optim.Adam(series.parameters(), lr=3e-3)
wave = torch.sin(torch.arange(400) / 3.0)
for step in range(30):
    values = torch.randn(8, 400) * 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = series(values)
    loss = nn.functional.mse_loss(predicted.float(), values + wave)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
