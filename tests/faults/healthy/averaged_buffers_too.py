"""An average of weights and statistics, evaluated after each epoch, beside a frozen copy that never moves."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
average, first = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(5):
    for _ in range(12):
        x = 2 * torch.randn(32, 8) + 1
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, live in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(live, 0.1)
            for slow, live in zip(average.buffers(), model.buffers(), strict=True):
                slow.copy_(live)
    with torch.no_grad():
        print(F.cross_entropy(average(x), x[:, :3].argmax(1)).item(), F.cross_entropy(first(x), x[:, :3].argmax(1)))
