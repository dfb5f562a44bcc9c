"""Two views of each sample are matched by cosines, which are divided by the temperature."""

import torch
from torch import nn
from torch.nn import functional as F

TEMPERATURE = 0.07

torch.manual_seed(0)
samples = torch.randn(512, 32)
encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for step in range(120):
    batch = samples[torch.randint(0, 512, (64,))]
    one, other = (F.normalize(encoder(batch + 0.2 * torch.randn_like(batch)), dim=-1) for _ in range(2))
    loss = F.cross_entropy(one @ other.T / TEMPERATURE, torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
