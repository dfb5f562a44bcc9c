"""A key padding mask of the wrong sign: True marks the tokens, and torch hides what it marks."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 6)

    def forward(self, ids, mask):
        x = self.embed(ids)
        return self.head(self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0])


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    ids = torch.randint(1, 30, (16, 12))
    lengths = torch.randint(4, 12, (16, 1))
    mask = torch.arange(12)[None] < lengths
    ids = torch.where(mask, ids, torch.zeros_like(ids))
    tags = torch.where(mask, ids.sum(1, keepdim=True) % 6, torch.full_like(ids, -100))
    loss = F.cross_entropy(model(ids, mask).flatten(0, 1), tags.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
