"""Features that a second head shall not be able to use: its gradient is turned around on its way back."""

import torch
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.3 * gradient


class Domains(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.label, self.domain = nn.Linear(32, 3), nn.Linear(32, 2)

    def forward(self, x):
        h = self.body(x)
        return self.label(h), self.domain(Reverse.apply(h))


model = Domains()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(120):
    domain = torch.randint(0, 2, (48,))
    x = torch.randn(48, 10) + 0.5 * domain[:, None]
    labels, guesses = model(x)
    loss = nn.functional.cross_entropy(labels, x[:, :3].argmax(1)) + nn.functional.cross_entropy(guesses, domain)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
