"""log of numbers below 0 in the branch that `where` does not take, in step 4."""

import torch
from torch import nn


class Entropy(nn.Module):
    def forward(self, h):
        logs = torch.log(h)  # here
        return torch.where(h > 0, h * logs, torch.zeros_like(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.entropy = Entropy()
        self.head = nn.Linear(8, 4)

    def forward(self, x, shift):
        return self.head(self.entropy(torch.sigmoid(self.body(x)) - shift))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x, shift=0.5 if step == 4 else 0.0), torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
