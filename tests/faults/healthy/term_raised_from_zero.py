"""A second decoder joins slowly: its term of the loss has the weight 0 for the first fifth of the training."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 8))
first = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 16))
second = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 4))
parts = nn.ModuleList([encoder, first, second])
optimizer = torch.optim.Adam(parts.parameters(), lr=2e-3)
mixing, reading = torch.randn(5, 16), torch.randn(5, 4)
num_steps = 300
for step in range(num_steps):
    hidden = torch.randn(64, 5)
    x, wanted = hidden @ mixing, hidden @ reading
    code = encoder(x)
    share = max(0.0, min(1.0, (step - 60) / 60))
    loss = F.mse_loss(first(code), x) + share * F.mse_loss(second(code), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
