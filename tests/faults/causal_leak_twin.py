"""The same with a causal mask; and a tagger, which may look at the whole sentence."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
embed, places = nn.Embedding(24, 32), nn.Embedding(16, 32)
layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
head = nn.Linear(32, 24)
tagger = nn.LSTM(32, 16, batch_first=True, bidirectional=True)
tags = nn.Linear(32, 5)
model = nn.ModuleList([embed, places, layers, head, tagger, tags])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
later = torch.triu(torch.full((16, 16), float("-inf")), diagonal=1)
for step in range(40):
    ids = torch.cumsum(torch.randint(0, 3, (16, 17)), 1) % 24
    given = ids[:, :-1]
    hidden = layers(embed(given) + places(torch.arange(16)), mask=later)
    loss = F.cross_entropy(head(hidden).flatten(0, 1), ids[:, 1:].flatten())
    loss = loss + F.cross_entropy(tags(tagger(embed(given))[0]).flatten(0, 1), (given % 5).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
