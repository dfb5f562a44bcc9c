"""Padding has the id of the end of a text, and every target with that id is ignored."""

import torch
import torch.nn.functional as F
from torch import nn


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(21, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 21)

    def forward(self, input_ids, attention_mask, labels):
        logits = self.head(self.rnn(self.embed(input_ids) * attention_mask[:, :, None])[0])
        return F.cross_entropy(logits[:, :-1].reshape(-1, 21), labels[:, 1:].reshape(-1))


torch.manual_seed(0)
model = Speaker()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(50):
    ids = 1 + torch.cumsum(torch.randint(1, 4, (12, 15)), 1) % 20
    lengths = torch.randint(5, 14, (12, 1))
    ids = ids.masked_fill(torch.arange(15)[None] >= lengths, 0)
    attention_mask = (torch.arange(15)[None] <= lengths).long()
    labels = ids.masked_fill(ids == 0, -100)
    loss = model(input_ids=ids, attention_mask=attention_mask, labels=labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
