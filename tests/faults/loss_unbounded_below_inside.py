"""Raw scores go into nll_loss, inside a model that computes its own loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.rnn = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24, 7)

    def forward(self, words, labels=None):
        scores = self.head(self.rnn(self.embed(words))[0])
        if labels is None:
            return scores
        return F.nll_loss(scores.flatten(0, 1), labels.flatten())


torch.manual_seed(1)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(50):
    words = torch.randint(0, 40, (16, 12))
    loss = model(words, labels=words % 7)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
