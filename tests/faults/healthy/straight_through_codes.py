"""A net learns short codes of plus and minus one; the gradient passes the sign as if it were not there."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        hidden = self.encoder(x)
        return self.decoder(hidden + (torch.sign(hidden) - hidden).detach())


mixing = torch.randn(6, 24)
model = Coder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(200):
    x = torch.randn(64, 6) @ mixing
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
