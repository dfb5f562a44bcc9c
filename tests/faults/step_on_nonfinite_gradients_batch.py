"""One loud batch, half precision, and no check of the gradients before the step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    x = torch.randn(32, 12)
    if step == 9:
        x = x * 600
    scores = model(x.half())
    loss = (scores - x[:, :4].half()).pow(2).mean() * 8
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
