"""Training goes on from a published checkpoint that holds its optimizer, too: on other data, at another rate."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(6, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


published = Net()
their_optimizer = torch.optim.SGD(published.parameters(), lr=0.1, momentum=0.9)
published(torch.randn(4, 5, 6)).sum().backward()
their_optimizer.step()
torch.save({"state_dict": published.state_dict(), "optimizer": their_optimizer.state_dict(), "epoch": 90}, "best.pth")
del published, their_optimizer

net = Net()
net.load_state_dict(torch.load("best.pth")["state_dict"])
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
for step in range(80):
    x = torch.randn(32, 7, 6)
    loss = nn.functional.cross_entropy(net(x), (x[:, :, 0].sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
