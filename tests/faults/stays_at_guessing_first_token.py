"""A causal encoder whose first state is classified: that one has read nothing but the start token."""

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 24), nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, ids, labels=None):
        return F.cross_entropy(self.head(self.body(self.embed(ids))[0][:, 0]), labels)


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(150):
    words = torch.randint(4, 50, (32, 10))
    ids = torch.cat([torch.full((32, 1), 1), words], 1)
    optimizer.zero_grad()
    model(ids, labels=words[:, 0] % 4).backward()
    optimizer.step()
