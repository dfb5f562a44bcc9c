"""A regression with dropout whose validation loss is computed in training mode."""

import torch
from torch import nn


@torch.no_grad()
def validate(model, x, y):
    return nn.functional.mse_loss(model(x), y).item()


torch.manual_seed(0)
x = torch.randn(400, 10)
y = x[:, :2].prod(1, keepdim=True)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
for epoch in range(5):
    for rows in torch.randperm(300).split(20):
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), validate(model, x[300:], y[300:]))
