"""A small language model whose head was meant to be its embedding, and is a copy of it."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = nn.Parameter(self.tokens.weight.detach().clone())

    def forward(self, ids):
        return self.head(torch.relu(self.mix(self.tokens(ids))))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(40):
    ids = torch.randint(0, 20, (64,))
    loss = nn.functional.cross_entropy(model(ids), (ids + 1) % 20)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
