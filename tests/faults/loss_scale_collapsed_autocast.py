"""Autocast to fp16 with a GradScaler, and a product in the model that fp16 cannot hold whatever the scale is."""

import torch
import torch.nn.functional as F
from torch import nn


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(16, 64), nn.Linear(16, 64)
        self.head = nn.Linear(1, 3)

    def forward(self, x):
        similarity = (self.left(x)[:, None] @ self.right(x)[:, :, None]).flatten(1)
        return self.head(similarity)


torch.manual_seed(0)
model = Bilinear()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=100)
for step in range(60):
    x = torch.randn(32, 16) * (1 if step < 12 else 4000)
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())
