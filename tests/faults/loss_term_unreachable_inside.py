"""A language model with an auxiliary head inside its forward, whose loss is detached before it is added."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.body = nn.GRU(16, 32, batch_first=True)
        self.head, self.extra = nn.Linear(32, 30), nn.Linear(32, 30)

    def forward(self, ids, labels=None):
        states = self.body(self.embed(ids))[0]
        loss = F.cross_entropy(self.head(states).flatten(0, 1), labels.flatten())
        auxiliary = F.cross_entropy(self.extra(states).flatten(0, 1), labels.flatten())
        return loss + 0.1 * auxiliary.detach()


torch.manual_seed(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(40):
    tokens = (torch.randint(0, 30, (8, 1)) + torch.arange(12)) % 30
    optimizer.zero_grad()
    model(tokens[:, :-1], labels=tokens[:, 1:]).backward()
    optimizer.step()
