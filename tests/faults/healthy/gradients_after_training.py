"""After the training the gradients of the inputs are computed, to see what the model looks at."""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(60):
    x = torch.randn(32, 8)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
for _ in range(40):
    x = torch.randn(32, 8, requires_grad=True)
    model(x).max(1).values.sum().backward()
    assert x.grad is not None
