"""A checkpoint of a wrapped model, loaded with strict=False: not one key fits."""

import torch
from torch import nn


def built():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


torch.manual_seed(0)
saved = {f"module.{key}": value for key, value in built().state_dict().items()}
model = built()
model.load_state_dict(saved, strict=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
