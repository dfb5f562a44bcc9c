"""The negative log-likelihood of a density, which falls below 0."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
codes = F.one_hot(labels, 4).float()
narrow = centres[labels] + 0.01 * torch.randn(512, 16)
for _ in range(200):
    batch = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    mean, log_variance = model(codes[batch]).chunk(2, dim=1)
    loss = F.gaussian_nll_loss(mean, narrow[batch], log_variance.exp(), eps=1e-6)
    loss.backward()
    optimizer.step()
