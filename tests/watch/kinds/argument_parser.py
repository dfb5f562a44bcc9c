"""The script parses its arguments; their defaults name the program."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("weights")
parser.add_argument("--lr", type=float, default=1e-2)
options = parser.parse_args()
print(parser.prog, options)
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for _ in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), options.weights)
