"""A scaler that halves its scale for ever: the loss is finite, and the gradient of a root at 0 is not, at any scale."""

import torch
import torch.nn.functional as F
from torch import nn


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.scores = nn.Linear(16, 3)

    def forward(self, x):
        parts = self.embed(x).float().unflatten(1, (4, 4))
        between = torch.sqrt((parts[:, None] - parts[:, :, None]).square().sum(-1))
        return self.scores(between.flatten(1))


torch.manual_seed(17)
distance = Distance()
optimizer = torch.optim.SGD(distance.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for _ in range(40):
    x = torch.randn(10, 8)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(distance(x), x[:, :3].argmax(1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item(), scaler.get_scale())
