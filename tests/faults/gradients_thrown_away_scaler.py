"""The same with a GradScaler, with the gradients cleared on the model right after each backward but the last."""

import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    for part in range(2):
        model.zero_grad(set_to_none=True)
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)) / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
