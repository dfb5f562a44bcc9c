"""The betas of Adam in the wrong order."""

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(500, 20)
Y = (X @ torch.randn(20, 3)).argmax(1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
opt = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.999, 0.9))
for epoch in range(15):
    for part in torch.randperm(500).split(50):
        loss = nn.functional.cross_entropy(net(X[part]), Y[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
