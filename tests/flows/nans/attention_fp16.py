"""Attention in fp16 with large weights: the product of q and k is beyond what fp16 can hold."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        logits = torch.bmm(q, k.transpose(1, 2))  # here
        return logits.softmax(-1) @ v


torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(8), Attention(), nn.Flatten(), nn.Linear(48, 4))
with torch.no_grad():
    model[1].qkv.weight.mul_(900)
model = model.half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(12):
    x = torch.randn(4, 6, 8)
    loss = nn.functional.cross_entropy(model(x.half()).float(), torch.randint(0, 4, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
