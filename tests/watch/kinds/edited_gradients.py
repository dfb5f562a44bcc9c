"""Gradients edited by hand between backward and step: noise, clamping, a new tensor, one taken away."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad += 0.01 * torch.randn_like(parameter)
    model[0].weight.grad.data.clamp_(-0.05, 0.05)
    model[0].bias.grad = model[0].bias.grad * 0.5
    with torch.no_grad():
        model[2].weight.grad.mul_(0.7)
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad.div_(norm.clamp(min=1.0))
    if step % 5 == 0:
        model[2].bias.grad = None
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), norm.item())
torch.save(model.state_dict(), sys.argv[1])
