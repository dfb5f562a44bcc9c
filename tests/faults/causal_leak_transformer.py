"""A decoder of attention layers without the causal mask."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
embed, places = nn.Embedding(24, 32), nn.Embedding(16, 32)
layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
head = nn.Linear(32, 24)
model = nn.ModuleDict({"embed": embed, "places": places, "layers": layers, "head": head})
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(40):
    ids = torch.cumsum(torch.randint(0, 3, (16, 17)), 1) % 24
    given = ids[:, :-1]
    hidden = layers(embed(given) + places(torch.arange(16)))
    loss = F.cross_entropy(head(hidden).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
