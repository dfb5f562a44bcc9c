"""A small transformer with a weight decay of 0.5 on every parameter, those of its norms included."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(20, 32), layer, nn.LayerNorm(32), nn.Linear(32, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
for step in range(60):
    tokens = torch.randint(0, 20, (16, 8))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
