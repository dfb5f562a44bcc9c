"""A transformer layer with MultiheadAttention, a mask with -inf, and nested modules in eval for a while."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, ids, mask):
        x = self.layer(self.tokens(ids), src_mask=mask, is_causal=True)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=True)[0]
        return self.head(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
mask = nn.Transformer.generate_square_subsequent_mask(7)
for step in range(50):
    ids = torch.randint(0, 20, (4, 8))
    loss = nn.functional.cross_entropy(model(ids[:, :-1], mask=mask).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
