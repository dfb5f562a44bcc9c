"""A variational autoencoder whose two terms are divided by the number of samples."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 48), nn.ReLU())
        self.mean = nn.Linear(48, 4)
        self.log_variance = nn.Linear(48, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 20))

    def forward(self, x):
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


mixing = torch.randn(4, 20)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(150):
    x = torch.randn(48, 4) @ mixing + 0.1 * torch.randn(48, 20)
    made, mean, log_variance = model(x)
    error = F.mse_loss(made, x, reduction="sum") / len(x)
    divergence = -0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp()) / len(x)
    loss = error + divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
