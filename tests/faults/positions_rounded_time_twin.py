"""The phase of a period of 90 seconds, of times in fp64."""

import torch
from torch import nn

torch.manual_seed(0)
seconds = 1_700_000_000 + torch.randint(0, 30 * 86400, (2000,))
load = torch.sin(6.2832 * (seconds % 90) / 90)
time = seconds.to(torch.float64)
phase = (6.2832 * torch.remainder(time, 90.0) / 90).float()
features = torch.stack([torch.sin(phase), torch.cos(phase)], 1)
net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 3e-3)
for epoch in range(5):
    for part in torch.randperm(2000).split(50):
        loss = nn.functional.mse_loss(net(features[part])[:, 0], load[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
