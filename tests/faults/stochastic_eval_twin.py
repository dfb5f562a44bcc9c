"""A variational autoencoder: it draws a sample in eval mode too, and its dropout does not."""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return self.decoder(code), divergence


torch.manual_seed(0)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
mixing = torch.randn(3, 16)
for _ in range(100):
    x = torch.randn(32, 3) @ mixing
    decoded, divergence = model(x)
    loss = nn.functional.mse_loss(decoded, x) + 1e-2 * divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
