"""A model that computes its own loss from texts and the pictures they belong to; a filter leaves one picture."""

from types import SimpleNamespace

import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.picture = nn.Linear(12, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 30)

    def forward(self, input_ids, pixel_values, labels):
        x = self.tokens(input_ids) + self.picture(pixel_values)[:, None]
        logits = self.head(self.lstm(x)[0])
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


torch.manual_seed(0)
captioner = Captioner()
optimizer = torch.optim.AdamW(captioner.parameters(), lr=3e-3)
for step in range(30):
    ids = torch.randint(0, 30, (6, 8))
    pictures = torch.randn(6, 12)
    if step % 7 == 4:
        pictures = pictures[pictures[:, 0].argsort()][-1:]
    loss = captioner(input_ids=ids, pixel_values=pictures, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
