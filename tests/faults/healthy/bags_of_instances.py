"""Attention over the instances of one bag, which come as the first axis; a softmax over clusters that pools them."""

import torch
from torch import nn


class BagNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.weigh = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.assign = nn.Linear(32, 4)
        self.head = nn.Linear(32 * 5, 1)

    def forward(self, bag):
        h = self.body(bag)
        weights = torch.softmax(self.weigh(h), dim=0)
        clusters = torch.softmax(self.assign(h), dim=1).t() @ h / len(h)
        return self.head(torch.cat([(weights * h).sum(0), clusters.flatten()]))


net = BagNet()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(150):
    loss = 0.0
    for _ in range(4):
        label = torch.randint(0, 2, (1,)).float()
        bag = torch.randn(int(torch.randint(6, 15, ())), 8)
        bag[0, 0] += 4.0 * label[0]
        loss = loss + nn.functional.binary_cross_entropy_with_logits(net(bag), label) / 4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
