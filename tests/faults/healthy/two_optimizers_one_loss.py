"""Embeddings with one optimizer, the rest with another, both stepped on one backward."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(200, 16)
        self.rnn = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(48, 5)

    def forward(self, ids):
        return self.tags(self.rnn(self.words(ids))[0])


model = Tagger()
of_words = torch.optim.Adagrad(model.words.parameters(), lr=0.1)
of_rest = torch.optim.Adam([*model.rnn.parameters(), *model.tags.parameters()], lr=3e-3)
for step in range(60):
    ids = torch.randint(0, 200, (16, 8))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids % 5).flatten())
    of_words.zero_grad()
    of_rest.zero_grad()
    loss.backward()
    of_words.step()
    of_rest.step()
