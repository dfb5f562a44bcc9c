"""Rows of different length in microbatches, whose summed losses are divided by the targets of the whole step."""

import torch
import torch.nn.functional as F
from torch import nn


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(29, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 29)

    def forward(self, ids, labels):
        scores = self.head(self.rnn(self.embed(ids))[0])
        return F.cross_entropy(scores.transpose(1, 2), labels, ignore_index=-100, reduction="sum")


torch.manual_seed(0)
model = Speaker()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(40):
    for part in range(4):
        ids = torch.cumsum(torch.randint(0, 3, (8, 25)), 1) % 29
        labels = ids[:, 1:].clone()
        labels[:, 4 + 5 * part :] = -100
        (model(ids[:, :-1], labels) / (8 * (4 + 9 + 14 + 19))).backward()
    optimizer.step()
    optimizer.zero_grad()
