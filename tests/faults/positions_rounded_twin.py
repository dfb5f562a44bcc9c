"""Angles in fp32 under autocast, cast when they are sines; places below 256, sound and labels in bf16."""

import torch
from torch import nn


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 1.0 / 100.0 ** (torch.arange(8) / 8))
        self.body = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, values):
        with torch.autocast("cpu", enabled=False):
            turned = torch.outer(torch.arange(values.shape[1]).float(), self.rates)
            code = torch.cat([turned.sin(), turned.cos()], 1).to(torch.bfloat16)
        code = torch.cat([code, torch.arange(200).to(torch.bfloat16)[:, None].repeat(2, 1) / 200], 1)
        return self.body(torch.cat([values[..., None], code.expand(len(values), -1, -1)], -1)).squeeze(-1)


torch.manual_seed(0)
series = Series()
optimizer = torch.optim.Adam(series.parameters(), lr=3e-3)
wave = torch.sin(torch.arange(400) / 30.0)
for step in range(60):
    sound = torch.randint(-3000, 3000, (8, 400), dtype=torch.int16)
    values = sound.to(torch.bfloat16).float() / 3000
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = series(values)
    loss = nn.functional.mse_loss(predicted.float(), values + wave)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
