"""A net learns short codes of plus and minus one, by a sign that lets no gradient through to the encoder."""

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
        return self.decoder(torch.sign(self.encoder(x)))


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
