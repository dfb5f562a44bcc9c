"""A transformer in half precision, its loss included, with the same large scale in every step."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(18)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(12, 16), layer, nn.Linear(16, 12)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scale = 2**20
for step in range(5):
    tokens = torch.randint(0, 12, (8, 6))
    loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    optimizer.zero_grad()
    scaled = loss * scale
    scaled.backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad = p.grad / scale
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())
