"""Two inputs from one loader, whose last batch has one sample of each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.out = nn.Linear(8, 32), nn.Linear(5, 32), nn.Linear(32, 1)

    def forward(self, one, other):
        return self.out(torch.relu(self.one(one) + self.other(other)))


model = Pairs()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
one, other = torch.randn(97, 8), torch.randn(97, 5)
target = one[:, :1] + other[:, :1].abs()
for epoch in range(20):
    for a, b, y in DataLoader(TensorDataset(one, other, target), batch_size=24, shuffle=True):
        loss = nn.functional.mse_loss(model(a, b), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
