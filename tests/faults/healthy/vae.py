"""A variational autoencoder: random numbers in the forward, the input as the target, two terms in the loss."""

import torch
from torch import nn


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 8))
        self.decode = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decode(code), mean, log_variance


mix = torch.randn(4, 24)
model = Coder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(150):
    x = torch.sigmoid(torch.randn(32, 4) @ mix)
    logits, mean, log_variance = model(x)
    told = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
    loss = (told + divergence).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
