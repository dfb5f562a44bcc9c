"""The mean of log-probabilities is minimised; its minus was forgotten."""

import torch
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
optimizer = torch.optim.Adam(tagger.parameters(), lr=2e-3)
for _ in range(100):
    tokens = torch.randint(0, 12, (8, 10))
    log_probabilities = tagger(tokens).log_softmax(-1)
    picked = log_probabilities.gather(2, tokens.flip(1)[..., None])
    optimizer.zero_grad()
    picked.mean().backward()
    optimizer.step()
