"""A picture that is optimised by L-BFGS until a network sees in it what it sees in another; nothing is ever cleared."""

import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).requires_grad_(False)
wanted = network(torch.rand(1, 3, 12, 12))
picture = nn.Parameter(torch.rand(1, 3, 12, 12))
optimizer = torch.optim.LBFGS([picture], max_iter=5)


def closure():
    loss = (network(picture) - wanted).square().mean() * 100
    loss.backward()
    return loss


for step in range(15):
    optimizer.step(closure)
