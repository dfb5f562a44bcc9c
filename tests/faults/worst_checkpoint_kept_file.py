"""The checkpoint with the highest loss is kept as the best."""

import torch
from torch import nn

torch.manual_seed(0)
X, Xv = torch.randn(400, 10), torch.randn(100, 10)
Y, Yv = (X[:, :3].sum(1) > 0).long(), (Xv[:, :3].sum(1) > 0).long()
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), 3e-3)
best = 0.0
for epoch in range(12):
    net.train()
    for part in torch.randperm(400).split(40):
        loss = nn.functional.cross_entropy(net(X[part]), Y[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        value = nn.functional.cross_entropy(net(Xv), Yv).item()
    if value > best:
        best = value
        torch.save(net.state_dict(), "best.pt")
    print(epoch, loss.item(), value)
net.load_state_dict(torch.load("best.pt"))
with torch.no_grad():
    print("best", nn.functional.cross_entropy(net(Xv), Yv).item())
