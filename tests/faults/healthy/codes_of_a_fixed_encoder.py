"""A decoder on the codes of an encoder that is not trained any more, and is in no optimizer."""

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 16))
optimizer = torch.optim.AdamW(decoder.parameters(), lr=2e-3)
basis = torch.randn(4, 16)
for step in range(80):
    x = torch.randn(32, 4) @ basis
    codes = torch.from_numpy(encoder(x).detach().numpy())
    loss = nn.functional.mse_loss(decoder(codes), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
