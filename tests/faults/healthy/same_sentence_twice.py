"""Each sentence stands twice in its batch: dropout makes two views of it, which shall be alike."""

import torch
from torch import nn


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.body = nn.TransformerEncoderLayer(24, 2, 48, 0.1, batch_first=True)

    def forward(self, ids):
        return nn.functional.normalize(self.body(self.words(ids)).mean(1), dim=-1)


model = Sentences()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randint(0, 50, (320, 8))
for epoch in range(4):
    for rows in torch.randperm(320).split(16):
        vectors = model(torch.cat([data[rows], data[rows]]))
        scores = vectors[:16] @ vectors[16:].T / 0.1
        loss = nn.functional.cross_entropy(scores, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
