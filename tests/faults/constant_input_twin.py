"""Zeros that are meant: the first state of an LSTM, and a mask that masks nothing."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x, state, mask):
        out, _ = self.lstm(x, (state[None], state[None]))
        return self.head((out * mask[..., None]).mean(1))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(60):
    x = torch.randn(16, 5, 6)
    loss = nn.functional.cross_entropy(model(x, torch.zeros(16, 16), torch.ones(16, 5)), x.sum((1, 2)).gt(0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
