"""A slow average in a dict of clones, a frozen reference, a kept state dict, and decay by hand."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
reference = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
shadow = {name: value.clone() for name, value in model.state_dict().items()}
for step in range(40):
    x = torch.randn(32, 12)
    with torch.no_grad():
        near = reference(x)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, x[:, :4].argmax(1)) + 0.01 * (logits - near).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1 - 1e-4)
            shadow[name].mul_(0.9999).add_(parameter, alpha=0.0001)
