"""Private training: gradients of single samples are clipped, added up, and copied into place; nothing is cleared."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.3)
for step in range(80):
    x = torch.randn(12, 8)
    labels = x[:, :3].argmax(1)
    total = [torch.zeros_like(p) for p in parameters]
    for sample, label in zip(x, labels, strict=True):
        loss = nn.functional.cross_entropy(model(sample[None]), label[None])
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        for summed, gradient in zip(total, gradients, strict=True):
            summed += gradient * min(1.0, 1.0 / float(norm + 1e-6)) / len(x)
    for parameter, gradient in zip(parameters, total, strict=True):
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)
    optimizer.step()
