"""A model with its loss inside, given padded ids as labels; the padding is the last id of the vocabulary."""

import torch
import torch.nn.functional as F
from torch import nn


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(21, 24)
        self.rnn = nn.LSTM(24, 32, batch_first=True)
        self.head = nn.Linear(32, 21)

    def forward(self, input_ids, labels):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:]), logits


torch.manual_seed(1)
model = Speaker()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(50):
    ids = torch.cumsum(torch.randint(1, 4, (12, 15)), 1) % 20
    ids = ids.masked_fill(torch.arange(15)[None] >= torch.randint(5, 15, (12, 1)), 20)
    loss, _ = model(ids, labels=ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
