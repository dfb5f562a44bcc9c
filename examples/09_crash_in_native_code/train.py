"""Reads its samples from a file mapped into memory, which a second program makes shorter in the meantime."""

import os

import torch
from torch import nn

torch.manual_seed(0)
torch.randn(64 * 4096).numpy().tofile("series.bin")
series = torch.from_file("series.bin", shared=True, size=64 * 4096).view(64, 4096)
model = nn.Sequential(nn.Conv1d(1, 4, 9, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 511, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(8):
    if step == 5:
        os.truncate("series.bin", 4096)  # the second program
    x = series[8 * step : 8 * step + 8]
    loss = nn.functional.mse_loss(model(x.unsqueeze(1)), torch.ones(8, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.3f}", flush=True)
