"""Weights in bfloat16, with a master copy kept by hand."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to(torch.bfloat16)
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-2)
x, y = torch.randn(32, 8, dtype=torch.bfloat16), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x).float(), y)
    model.zero_grad()
    loss.backward()
    for master, p in zip(masters, model.parameters(), strict=True):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters(), strict=True):
            p.copy_(master)
    if step % 6 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
