"""A LayerNorm written out in half precision, on inputs whose squares are beyond its range."""

import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


torch.manual_seed(0)
centres = torch.randn(4, 24)
labels = torch.randint(0, 4, (512,))
inputs = (centres[labels] + 0.3 * torch.randn(512, 24)) * 300
model = nn.Sequential(LayerNorm(24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 4)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(30):
    chosen = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(inputs[chosen].half()).float(), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
