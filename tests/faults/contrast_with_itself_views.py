"""NT-Xent whose similarities keep their diagonal."""

import torch
from torch import nn
from torch.nn import functional as F


def nt_xent(first, second, temperature=0.2):
    both = F.normalize(torch.cat([first, second]), dim=1)
    similarity = both @ both.T / temperature
    count = len(first)
    return F.cross_entropy(similarity, torch.cat([torch.arange(count, 2 * count), torch.arange(count)]))


torch.manual_seed(0)
x = torch.randn(600, 24)
encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
for _ in range(80):
    rows = x[torch.randint(600, (32,))]
    loss = nt_xent(encoder(rows + 0.3 * torch.randn_like(rows)), encoder(rows + 0.3 * torch.randn_like(rows)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
