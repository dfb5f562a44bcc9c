"""Targets one ahead of the inputs for a language model, at the same place for a tagger, and hidden tokens."""

import torch
import torch.nn.functional as F
from torch import nn


class Reader(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.embed = nn.Embedding(24, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, num_classes)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


torch.manual_seed(2)
speaker, tagger, filler = Reader(24), Reader(5), Reader(24)
models = nn.ModuleList([speaker, tagger, filler])
optimizer = torch.optim.Adam(models.parameters(), lr=3e-3)
for step in range(60):
    ids = torch.cumsum(torch.randint(0, 3, (16, 14)), 1) % 23
    speaking = F.cross_entropy(speaker(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    tagging = F.cross_entropy(tagger(ids).flatten(0, 1), (ids % 5).flatten())
    hidden = torch.rand(ids.shape) < 0.15
    targets = torch.where(hidden, ids, torch.full_like(ids, -100))
    filling = F.cross_entropy(filler(ids.masked_fill(hidden, 23)).flatten(0, 1), targets.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    (speaking + tagging + filling).backward()
    optimizer.step()
