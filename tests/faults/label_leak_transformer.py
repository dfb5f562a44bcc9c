"""A language model whose target is the very token it is given: the targets were not shifted."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(24, 32)
        self.places = nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 24)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.body(x, mask=mask, is_causal=True))


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
text = (torch.arange(4000) * 5 + torch.randint(0, 3, (4000,)).cumsum(0)) % 24
for _ in range(120):
    starts = torch.randint(0, len(text) - 13, (16,))
    ids = torch.stack([text[start : start + 12] for start in starts])
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
