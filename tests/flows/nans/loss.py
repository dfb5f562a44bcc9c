"""A hand-made loss, log of softmax, when logits become large in step 8."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    logits = model(x) * (2000 if step == 8 else 1)
    shares = torch.softmax(logits, dim=1)
    loss = -torch.log(shares)[torch.arange(16), y].mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
