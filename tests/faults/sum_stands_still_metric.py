"""An accuracy whose hits are counted in bf16."""

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(6000, 8)
Y = (X[:, 0] > 0).long()
net = nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(2):
    hits = torch.zeros((), dtype=torch.bfloat16)
    for part in torch.randperm(6000).split(8):
        scores = net(X[part])
        loss = nn.functional.cross_entropy(scores, Y[part])
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (scores.argmax(1) == Y[part]).sum()
    print(epoch, loss.item(), "accuracy", (hits / 6000).item())
