"""SGD with gradients clipped to a norm of 0.001."""

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(500, 20)
Y = X @ torch.randn(20, 1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for epoch in range(20):
    for part in torch.randperm(500).split(50):
        loss = nn.functional.mse_loss(net(X[part]), Y[part])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        opt.step()
    print(epoch, loss.item())
