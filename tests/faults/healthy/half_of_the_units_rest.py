"""A deep ReLU network, in which some units of each layer are inactive at first, and an LSTM that takes single steps."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(8, 16, batch_first=True)
        self.body = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(self.cell(x[:, None])[0][:, 0]))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(100):
    x = torch.randn(32, 8)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
