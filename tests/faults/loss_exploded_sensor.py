"""The readings of a sensor, and what is to be forecast from them, grow out of all bounds."""

import torch
from torch import nn

torch.manual_seed(8)
forecaster = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.GELU(), nn.Flatten(), nn.Linear(16 * 20, 1))
optimizer = torch.optim.SGD(forecaster.parameters(), lr=1e-4)
for day in range(160):
    gain = 1.0 if day < 60 else 1.06 ** (day - 60)
    series = torch.randn(32, 1, 21).cumsum(-1) / 3
    predicted = forecaster(series[..., :-1])
    loss = nn.functional.mse_loss(predicted, gain * series[..., -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
