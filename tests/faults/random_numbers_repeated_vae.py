"""A variational autoencoder that makes a generator with a fixed seed in its forward."""

import torch
from torch import nn
from torch.nn import functional as F


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(20, 32)
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))

    def forward(self, x):
        hidden = F.relu(self.encode(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        source = torch.Generator().manual_seed(123)
        noise = torch.randn(mean.shape, generator=source)
        return self.decode(mean + noise * (log_variance / 2).exp()), mean, log_variance


torch.manual_seed(0)
data = torch.sigmoid(torch.randn(400, 4) @ torch.randn(4, 20))
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(5):
    for rows in torch.randperm(400).split(40):
        guess, mean, log_variance = model(data[rows])
        fit = F.binary_cross_entropy_with_logits(guess, data[rows], reduction="none").sum(1).mean()
        loss = fit - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
