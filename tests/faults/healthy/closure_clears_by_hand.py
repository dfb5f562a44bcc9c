"""L-BFGS whose closure sets gradients to None itself."""

import torch
from torch import nn

inputs = torch.randn(100, 5)
targets = inputs.sin().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=8, line_search_fn="strong_wolfe")


def closure():
    for parameter in model.parameters():
        parameter.grad = None
    loss = nn.functional.mse_loss(model(inputs), targets)
    if loss.requires_grad:
        loss.backward()
    return loss


for step in range(15):
    optimizer.step(closure)
