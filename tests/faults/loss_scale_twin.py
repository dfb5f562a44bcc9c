"""A GradScaler that begins far too high and skips its first twenty-five steps, in a network with batch norm."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**45, growth_interval=10)
for step in range(60):
    x = torch.randn(32, 16)
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())
