"""The step waits for more microbatches than an epoch has."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
tagger = Tagger(dropout=0.1)
tokens = torch.randint(0, 12, (192, 10))
loader = DataLoader(TensorDataset(tokens), batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(tagger.parameters(), lr=1e-3)
for _ in range(2):
    optimizer.zero_grad()
    for index, (batch,) in enumerate(loader):
        loss = F.cross_entropy(tagger(batch).flatten(0, 1), batch.flip(1).flatten())
        (loss / 32).backward()
        if (index + 1) % 32 == 0:
            optimizer.step()
            optimizer.zero_grad()
