"""The generator's loss leaves gradients in the discriminator, which are cleared before its own."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
for it in range(200):
    real = torch.randn(64, 2) * 0.3 + torch.tensor([1.0, -1.0])
    fake = G(torch.randn(64, 4))
    opt_d.zero_grad()
    loss_d = bce(D(real), torch.ones(64, 1)) + bce(D(fake.detach()), torch.zeros(64, 1))
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(D(fake), torch.ones(64, 1))
    loss_g.backward()
    opt_g.step()
    if it % 20 == 0:
        print(it, loss_d.item(), loss_g.item())
