"""Sequences of different lengths, classified by the state at the last position, which is padding."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16, padding_idx=0)
        self.read, self.answer = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, ids):
        return self.answer(self.read(self.words(ids))[0][:, -1])


torch.manual_seed(0)
ids, lengths = torch.randint(1, 20, (480, 30)), torch.randint(3, 24, (480,))
labels = (ids.gather(1, lengths[:, None] - 1)[:, 0] < 10).long()
ids[torch.arange(30) >= lengths[:, None]] = 0
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(8):
    for rows in torch.randperm(480).split(32):
        loss = nn.functional.cross_entropy(model(ids[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
