"""Dropout, and data and augmentation from numpy, Python and a torch.Generator, also inside the model."""

import random
import sys

import numpy as np
import torch
from torch import nn


class Noisy(nn.Module):
    def forward(self, x):
        if self.training and random.random() < 0.5:
            x = x + torch.from_numpy(np.random.standard_normal(x.shape).astype("float32")) * 0.01
        return x


torch.manual_seed(0)
np.random.seed(0)
random.seed(0)
generator = torch.Generator().manual_seed(7)
model = nn.Sequential(Noisy(), nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), Noisy(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    x = torch.from_numpy(np.random.standard_normal((16, 8)).astype("float32"))
    x *= random.uniform(0.9, 1.1)
    x += torch.randn(16, 8, generator=generator) * 0.1
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    loss = loss + 0.01 * torch.rand(()) * loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), random.random(), np.random.rand(), torch.rand(1).item())
torch.save(model.state_dict(), sys.argv[1])
