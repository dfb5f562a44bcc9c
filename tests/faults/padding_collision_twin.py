"""Sentences of different lengths, padded at their ends with an id that no word has."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, ids):
        return self.head(self.lstm(self.words(ids))[0].mean(1))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(60):
    ids = torch.randint(1, 30, (16, 12))
    ids[torch.arange(12) >= torch.randint(3, 13, (16, 1))] = 0
    loss = nn.functional.cross_entropy(model(ids), ids[:, 0] % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
