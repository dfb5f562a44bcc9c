"""An angle between two unit vectors: rounding takes the cosine of equal ones just beyond 1."""

import torch
from torch import nn


class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.LSTM(3, 12, batch_first=True)
        self.direct = nn.Linear(12, 3)

    def forward(self, path):
        return self.direct(self.encode(path)[0][:, -1])


torch.manual_seed(9)
turn = Turn()
optimizer = torch.optim.Adam(turn.parameters(), lr=1e-3)
for step in range(8):
    path = torch.randn(12, 6, 3)
    wanted = path[:, -1] / path[:, -1].norm(dim=1, keepdim=True)
    found = turn(path)
    if step == 5:
        found = torch.cat([found[:-1], 1.0001 * wanted[-1:] + 0 * found[-1:]])
        cosine = torch.cat(
            [(found[:-1] * wanted[:-1]).sum(1) / found[:-1].norm(dim=1), (found[-1:] * wanted[-1:]).sum(1)]
        )
    else:
        cosine = (found * wanted).sum(1) / (found.norm(dim=1) + 1e-6)
    loss = torch.acos(cosine).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
