"""Half-precision weights and RMSprop: squares of small gradients are 0 in that format, and so is eps."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(12)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(12, 16), layer, nn.Linear(16, 12)).half()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, eps=1e-8)
for step in range(4):
    tokens = torch.randint(0, 11, (8, 6))
    loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
