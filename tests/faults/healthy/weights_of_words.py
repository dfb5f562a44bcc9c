"""Weights of words by a softmax over the words of each row, from a single score per word."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.weigh = nn.Linear(24, 1)
        self.answer = nn.Linear(24, 3)

    def forward(self, ids):
        words = self.words(ids)
        weights = self.weigh(torch.tanh(words)).softmax(dim=1)
        return self.answer((weights * words).sum(1))


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(150):
    ids = torch.randint(0, 50, (32, 8))
    loss = nn.functional.cross_entropy(model(ids), ids.max(1).values // 17)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
