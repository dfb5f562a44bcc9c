"""A half-precision network that predicts rates as exp(linear(x)), with a learning rate that blows up the weights."""

import torch
from torch import nn


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(10, 32)
        self.rate = nn.Linear(32, 1)

    def forward(self, x):
        return torch.exp(self.rate(torch.tanh(self.body(x)))).squeeze(-1)


torch.manual_seed(1)
model = Rates().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(256, 10)
counts = torch.poisson(torch.exp(inputs[:, 0]))
for step in range(12):
    if step == 5:
        for group in optimizer.param_groups:
            group["lr"] = 20.0
    chosen = torch.randint(0, 256, (32,))
    rates = model(inputs[chosen].half()).float()
    loss = (rates - counts[chosen] * torch.log(rates + 1e-6)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
