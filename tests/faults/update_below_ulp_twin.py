"""bf16 weights with a warm-up from a tiny learning rate, and one that decays to nothing."""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.Embedding(40, 32), layer, nn.Linear(32, 40)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
rate = lambda step: min(1.0, (step + 1) / 12) * 0.5 * (1 + math.cos(math.pi * step / 40))  # noqa: E731
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
for step in range(40):
    tokens = torch.randint(0, 40, (16, 8))
    loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 10 == 0:
        print(step, loss.item())
