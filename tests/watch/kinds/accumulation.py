"""Four microbatches to a step, and the gradients cleared after it instead of before."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for microbatch in range(200):
    x = torch.randn(4, 8)
    y = x.argmax(1) % 4
    loss = nn.functional.cross_entropy(model(x), y) / 4
    loss.backward()
    if (microbatch + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    if microbatch % 40 == 0:
        print(microbatch, loss.item())
torch.save(model.state_dict(), sys.argv[1])
