"""Two attention layers, and only the first gets the mask."""

import torch
import torch.nn.functional as F
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, 6)

    def forward(self, ids, attention_mask):
        x = self.layers[0](self.embed(ids), src_key_padding_mask=attention_mask == 0)
        return self.head(self.layers[1](x))


torch.manual_seed(1)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    ids = torch.randint(1, 30, (16, 12))
    attention_mask = (torch.arange(12)[None] < torch.randint(4, 12, (16, 1))).long()
    ids = ids * attention_mask
    tags = torch.where(attention_mask == 1, ids % 6, torch.full_like(ids, -100))
    loss = F.cross_entropy(model(ids, attention_mask=attention_mask).transpose(1, 2), tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
