"""Attention between the nodes of small graphs: the softmax runs over those that look, not over those looked at."""

import torch
from torch import nn


class NodeAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, nodes):
        scores = self.query(nodes) @ self.key(nodes).transpose(1, 2) / nodes.shape[-1] ** 0.5
        return torch.softmax(scores, dim=1) @ self.value(nodes)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 16)
        self.attention = NodeAttention(16)
        self.out = nn.Linear(16, 1)

    def forward(self, nodes):
        h = torch.relu(self.embed(nodes))
        return self.out(h + self.attention(h)).squeeze(-1).mean(1)


torch.manual_seed(0)
net = GraphNet()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(50):
    nodes = torch.randn(16, 7, 5)
    loss = nn.functional.mse_loss(net(nodes), nodes[..., 0].amax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
