"""An encoder with an optimizer of its own, whose codes reach the decoder through numpy."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 16))
optimizers = [torch.optim.Adam(encoder.parameters(), lr=2e-3), torch.optim.AdamW(decoder.parameters(), lr=2e-3)]
basis = torch.randn(4, 16)
for step in range(80):
    x = torch.randn(32, 4) @ basis
    codes = torch.from_numpy(encoder(x).detach().numpy())
    loss = nn.functional.mse_loss(decoder(codes), x)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
