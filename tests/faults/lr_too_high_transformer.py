"""A tagger trained with a learning rate that is a thousand times too large."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 12)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


torch.manual_seed(3)
tagger = Tagger()
optimizer = torch.optim.AdamW(tagger.parameters(), lr=0.5)
for _ in range(70):
    tokens = torch.randint(0, 12, (8, 10))
    optimizer.zero_grad()
    F.cross_entropy(tagger(tokens).transpose(1, 2), tokens.flip(1)).backward()
    optimizer.step()
