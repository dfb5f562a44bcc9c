"""The targets of a regression are noise, new in every step."""

import torch
import torch.nn.functional as F
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
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(240):
    x = torch.randn(32, 7, 5)
    optimizer.zero_grad()
    F.mse_loss(model(x), torch.randn(32)).backward()
    optimizer.step()
