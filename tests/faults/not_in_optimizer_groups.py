"""A small transformer whose parameters are divided into groups, and only the group with decay is handed over."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 24)
        self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(24, 16)

    def forward(self, ids):
        return self.out(self.block(self.tokens(ids)))


torch.manual_seed(0)
model = Reader()
decayed = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}], lr=1e-3)
for step in range(30):
    ids = torch.randint(0, 16, (8, 10))
    loss = nn.functional.cross_entropy(model(ids).transpose(1, 2), (ids + 1) % 16)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
