"""A small language model whose output matrix is drawn from N(0, 1)."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 50, bias=False)
        nn.init.normal_(self.lm_head.weight)

    def forward(self, ids):
        return self.lm_head(self.norm(self.block(self.tokens(ids))))


torch.manual_seed(0)
model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(25):
    ids = torch.randint(0, 50, (8, 9))
    loss = criterion(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
