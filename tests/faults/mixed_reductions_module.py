"""A criterion module that adds a summed smoothness penalty to the mean cross entropy of a tagger."""

import torch
from torch import nn


class TaggerLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.entropy = nn.CrossEntropyLoss()

    def forward(self, scores, tags):
        total = self.entropy(scores.flatten(0, 1), tags.flatten())
        return total + (scores[:, 1:] - scores[:, :-1]).pow(2).sum()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, words):
        return self.head(self.rnn(self.embed(words))[0])


torch.manual_seed(0)
model, criterion = Tagger(), TaggerLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    words = torch.randint(0, 40, (16, 12))
    loss = criterion(model(words), words % 5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
