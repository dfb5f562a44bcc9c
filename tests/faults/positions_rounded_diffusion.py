"""A denoiser takes the step of the noise as a number in bf16, of which it makes sines and cosines in fp32."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 + 16, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        rates = 0.5 ** torch.arange(8)
        turned = t.to(torch.bfloat16).float()[:, None] * rates
        return self.body(torch.cat([x, turned.sin(), turned.cos()], 1))


torch.manual_seed(0)
denoiser = Denoiser()
optimizer = torch.optim.Adam(denoiser.parameters(), lr=2e-3)
kept = torch.linspace(1.0, 0.01, 1000).cumsum(0).neg().div(200).exp()
for step in range(40):
    t = torch.randint(0, 1000, (32,))
    clean, noise = torch.randn(32, 2) * 0.3 + 1, torch.randn(32, 2)
    x = clean * kept[t, None].sqrt() + noise * (1 - kept[t, None]).sqrt()
    loss = nn.functional.mse_loss(denoiser(x, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
