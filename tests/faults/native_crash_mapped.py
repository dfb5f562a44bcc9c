"""A data set mapped from a file that is cut short in the middle of an epoch."""

import os

import torch
from torch import nn

torch.manual_seed(14)
torch.randn(64 * 4096).numpy().tofile("series.bin")
series = torch.from_file("series.bin", shared=True, size=64 * 4096).view(64, 4096)
network = nn.Sequential(nn.Conv1d(1, 4, 9, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 511, 1))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for batch in range(8):
    if batch == 4:
        os.truncate("series.bin", 4096)
    x = series[8 * batch : 8 * batch + 8]
    optimizer.zero_grad()
    nn.functional.mse_loss(network(x.clone().unsqueeze(1)), torch.ones(8, 1)).backward()
    optimizer.step()
