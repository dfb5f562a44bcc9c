"""Evaluation in inference mode between the steps, on tensors that are used again in training."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
with torch.inference_mode():
    x = torch.randn(32, 8)
y = torch.randint(0, 4, (32,))
x = x.clone()
for step in range(24):
    model.train()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.inference_mode():
        outputs = model(x)
        print(step, nn.functional.cross_entropy(outputs, y).item(), (outputs.argmax(1) == y).float().mean().item())
torch.save(model.state_dict(), sys.argv[1])
