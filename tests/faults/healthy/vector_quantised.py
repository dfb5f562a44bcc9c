"""Codes are replaced by their nearest neighbours in a book; gradients go past the replacement."""

import torch
from torch import nn


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.Tanh())
        self.book = nn.Embedding(32, 8)
        nn.init.uniform_(self.book.weight, -1, 1)
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        code = self.encode(x)
        nearest = self.book(torch.cdist(code, self.book.weight).argmin(-1))
        cost = (nearest - code.detach()).square().mean() + 0.25 * (nearest.detach() - code).square().mean()
        return self.decode(code + (nearest - code).detach()), cost


mix = torch.randn(3, 16)
model = Quantised()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(150):
    x = torch.randn(48, 3) @ mix
    made, cost = model(x)
    loss = nn.functional.mse_loss(made, x) + cost
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
