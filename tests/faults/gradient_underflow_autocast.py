"""Autocast to fp16 without a scaler, and a loss that is averaged over very many targets and weighted down."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
decoder = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.SiLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.SiLU(),
    nn.Conv2d(16, 4, 3, padding=1),
)
optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3)
for step in range(12):
    picture = torch.randn(8, 1, 24, 24)
    kinds = (picture[:, 0] > 0).long() + 2 * (picture[:, 0].abs() > 1).long()
    with torch.autocast("cpu", dtype=torch.float16):
        scores = decoder(picture)
        loss = 1e-4 * F.cross_entropy(scores, kinds)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
