"""Gradients are estimated from losses of disturbed weights; backward is never called."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
parameters = list(model.parameters())


@torch.no_grad()
def loss_at(disturbance, size):
    for parameter, direction in zip(parameters, disturbance, strict=True):
        parameter += size * direction
    batch = torch.arange(128)
    loss = F.cross_entropy(model(points[batch]), labels[batch]).item()
    for parameter, direction in zip(parameters, disturbance, strict=True):
        parameter -= size * direction
    return loss


for _ in range(60):
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(8):
        disturbance = [torch.randn_like(parameter) for parameter in parameters]
        slope = (loss_at(disturbance, 0.01) - loss_at(disturbance, -0.01)) / 0.02
        for parameter, direction in zip(parameters, disturbance, strict=True):
            parameter.grad += slope * direction / 8
    optimizer.step()
