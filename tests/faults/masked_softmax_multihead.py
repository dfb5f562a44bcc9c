"""torch's own attention with a padding mask, and in one batch a sample that is padding only."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.classify = nn.Linear(16, 3)

    def forward(self, tokens):
        x = self.tokens(tokens)
        mixed, _ = self.attention(x, x, x, key_padding_mask=tokens.eq(0))
        return self.classify(mixed.mean(1))


torch.manual_seed(11)
encoder = Encoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for step in range(6):
    tokens = torch.randint(1, 30, (10, 7))
    tokens[:, 5:] = 0
    if step == 2:
        tokens[6] = 0
    loss = F.cross_entropy(encoder(tokens), tokens[:, 0] % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
