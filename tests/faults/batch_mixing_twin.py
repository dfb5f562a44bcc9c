"""An LSTM with the samples first, as they come, and a norm over the batch."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.out = nn.Sequential(nn.BatchNorm1d(24), nn.Linear(24, 3))

    def forward(self, ids):
        states, _ = self.lstm(self.tokens(ids))
        return self.out(states[:, -1])


torch.manual_seed(0)
reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)
for step in range(30):
    ids = torch.randint(0, 20, (24, 6))
    loss = nn.functional.cross_entropy(reader(ids), ids[:, -1] % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
