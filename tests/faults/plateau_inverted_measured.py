"""The scheduler waits for the accuracy to fall; the evaluation loss is printed only."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(3)
X, Xv = torch.randn(800, 20), torch.randn(250, 20)
mix = torch.randn(20, 4)
Y, Yv = (X @ mix).argmax(1), (Xv @ mix).argmax(1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.Adam(net.parameters(), 2e-3)
schedule = ReduceLROnPlateau(opt, factor=0.1, patience=1)
for epoch in range(12):
    net.train()
    for part in torch.randperm(800).split(40):
        loss = nn.functional.cross_entropy(net(X[part]), Y[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        scores = net(Xv)
        value = (scores.argmax(1) == Yv).sum().item() / len(Yv)
        print(nn.functional.cross_entropy(scores, Yv).item())
    schedule.step(value)
    print(epoch, loss.item(), value, opt.param_groups[0]["lr"])
