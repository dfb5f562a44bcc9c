"""Two optimizers of one loss, both of which are cleared."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(8, 16), nn.Linear(16, 8)
first = torch.optim.Adam(encoder.parameters(), 1e-3)
second = torch.optim.Adam(decoder.parameters(), 1e-3)
for i in range(150):
    x = torch.randn(32, 8)
    first.zero_grad()
    second.zero_grad()
    loss = ((decoder(torch.relu(encoder(x))) - x) ** 2).mean()
    loss.backward()
    first.step()
    second.step()
    if i % 20 == 0:
        print(i, loss.item())
