"""A module whose weights are moved by hand under no_grad, with momentum kept in a dict."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
for step in range(50):
    x = torch.randn(16, 8)
    model.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            velocity[name].mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity[name], alpha=0.01)
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
