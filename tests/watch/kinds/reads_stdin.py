"""The training data comes from standard input."""

import sys

import torch
from torch import nn

numbers = [float(word) for word in sys.stdin.read().split()]
print(numbers)
torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.tensor(numbers)[:, None]
for _ in range(24):
    loss = nn.functional.mse_loss(model(x), 2 * x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
