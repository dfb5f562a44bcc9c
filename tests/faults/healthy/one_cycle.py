"""One cycle of rate and momentum, from very low to high to nearly 0."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv1d(2, 12, 5), nn.BatchNorm1d(12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=120)
for step in range(120):
    x = torch.randn(32, 2, 16)
    loss = nn.functional.cross_entropy(model(x), torch.bucketize(x.mean((1, 2)), torch.tensor([-0.08, 0.08])))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
