"""A loaded model with a norm of its own: its scales are not 1 at the start, and weight decay shrinks them."""

import torch
import torch.nn.functional as F
from torch import nn


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(8, 32), Scaled(32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3)
)
saved = model.state_dict()
saved |= {name: 1 + 0.3 * torch.randn(32).abs() for name in ("1.scale", "4.weight")}
model.load_state_dict(saved)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
for _ in range(60):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
