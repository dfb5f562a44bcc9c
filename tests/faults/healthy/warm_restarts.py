"""A cosine that restarts again and again, stepped after every batch, as its page says."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=20, T_mult=2)
for step in range(140):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
