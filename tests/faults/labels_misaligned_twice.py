"""The script shifts the labels, and so does the model: it learns to predict the token after the next."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 31)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].reshape(-1, 31), labels[:, 1:].reshape(-1))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
follows = torch.randperm(31)
for step in range(60):
    rows = [torch.randint(0, 31, (16,))]
    for _ in range(16):
        rows.append(torch.where(torch.rand(16) < 0.8, follows[rows[-1]], torch.randint(0, 31, (16,))))
    ids = torch.stack(rows, 1)
    loss = model(input_ids=ids[:, :-1], labels=ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
