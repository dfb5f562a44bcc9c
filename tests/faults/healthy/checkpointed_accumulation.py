"""Activations are computed again in backward, and gradients of four small batches are added up."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(24, 2, 48, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(24, 30)

    def forward(self, ids):
        x = self.embed(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False)
        return self.head(x)


model = Body()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(40):
    optimizer.zero_grad()
    for _ in range(4):
        ids = (torch.randint(0, 30, (4, 1)) + torch.arange(9)) % 30
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        (loss / 4).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
