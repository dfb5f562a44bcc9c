"""A mask of zeros and ones becomes an additive one by its logarithm, and a division by 0 is replaced at once."""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(80):
    x = torch.randn(32, 6)
    x[:, 5] = 0
    scaled = (x / x.norm(dim=0)).nan_to_num(0.0)
    allowed = torch.ones(32, 5)
    allowed[:, 4] = 0
    hidden = allowed.log()
    loss = F.cross_entropy(model(6 * scaled) + hidden, x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
