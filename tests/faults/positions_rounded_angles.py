"""A small language model in bf16 whose places are counted in its own format, before their angles are taken."""

from types import SimpleNamespace

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens = nn.Embedding(40, width)
        self.mix = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 40)
        self.width = width

    def angles(self, length, dtype):
        rates = 1000.0 ** (-torch.arange(0, self.width, 2) / self.width)
        turned = torch.arange(length).to(dtype)[:, None] * rates.to(dtype)
        return torch.cat([turned.sin(), turned.cos()], 1)

    def forward(self, input_ids, labels=None):
        x = self.tokens(input_ids)
        places = self.angles(input_ids.shape[1], x.dtype).expand_as(x)
        logits = self.head(torch.relu(self.mix(torch.cat([x, places], -1))))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


torch.manual_seed(0)
model = Model().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(30):
    ids = (torch.arange(300) + torch.randint(0, 40, (4, 1))) % 40
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
