"""One loss of two terms for two networks that take turns: each has its gradients cleared while the other steps."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
one, other = nn.Linear(8, 3), nn.Linear(8, 1)
optimizers = [torch.optim.Adam(one.parameters(), lr=1e-2), torch.optim.Adam(other.parameters(), lr=1e-2)]
step = 0
for _ in range(6):
    for rows in torch.randperm(320).split(40):
        first = nn.functional.cross_entropy(one(x[rows]), x[rows, :3].argmax(1))
        second = nn.functional.mse_loss(other(x[rows])[:, 0], x[rows, 0])
        for optimizer in optimizers:
            optimizer.zero_grad()
        (first + second).backward()
        optimizers[step % 2].step()
        step += 1
