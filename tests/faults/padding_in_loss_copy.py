"""Sentences of different length, padded with 0, and a cross entropy that counts the padding."""

import torch
from torch import nn

torch.manual_seed(0)


class Copier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(26, 32, padding_idx=0)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 26)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


model = Copier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(50):
    words = torch.randint(1, 26, (16, 12))
    words[torch.arange(12)[None] >= torch.randint(3, 12, (16, 1))] = 0
    spoken = torch.where(words > 0, 26 - words, words)
    loss = criterion(model(words).reshape(-1, 26), spoken.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
