"""A vocabulary of 50 words in a table of 53 rows, and positions of which only the first are used."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(53, 24, padding_idx=0), nn.Parameter(torch.randn(32, 24) * 0.02)
        self.body = nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True)
        self.head = nn.Linear(24, 53)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.body(self.words(ids) + self.places[: ids.shape[1]], src_mask=mask, is_causal=True)
        return self.head(x)[..., :50]


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(60):
    ids = 1 + (torch.randint(0, 49, (16, 1)) + torch.arange(12)) % 49
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
