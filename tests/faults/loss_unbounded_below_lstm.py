"""A regression that makes its squared error as large as it can."""

import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])[:, 0]


torch.manual_seed(1)
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(120):
    x = torch.randn(16, 7, 5)
    optimizer.zero_grad()
    loss = -((model(x) - x.sum((1, 2)) / 6) ** 2).mean()
    loss.backward()
    optimizer.step()
