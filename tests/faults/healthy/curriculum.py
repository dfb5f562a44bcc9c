"""Short sequences first, in large batches; then longer ones, in smaller batches: the loss rises at each change."""

import torch
from torch import nn


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for length, size in ((3, 64), (6, 32), (10, 16)):
    for step in range(60):
        x = torch.rand(size, length, 1)
        loss = nn.functional.mse_loss(model(x), x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
