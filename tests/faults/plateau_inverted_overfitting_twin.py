"""The evaluation loss rises while the training goes on, and the rate is lowered for it."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(2)
X, Xv = torch.randn(200, 20), torch.randn(250, 20)
mix = torch.randn(20, 4)
Y, Yv = (X @ mix + 4 * torch.randn(200, 4)).argmax(1), (Xv @ mix + 4 * torch.randn(250, 4)).argmax(1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.Adam(net.parameters(), 2e-2)
schedule = ReduceLROnPlateau(opt, factor=0.5, patience=1)
for epoch in range(20):
    net.train()
    for part in torch.randperm(200).split(40):
        loss = nn.functional.cross_entropy(net(X[part]), Y[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        scores = net(Xv)
        value = nn.functional.cross_entropy(scores, Yv)
    schedule.step(value)
    print(epoch, loss.item(), value, opt.param_groups[0]["lr"])
