"""A query and the documents that answer it: one for all of them, another in each step."""

import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.document = nn.Linear(10, 32), nn.Linear(10, 32)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(32, 1))

    def forward(self, query, documents):
        return self.score(self.query(query) + self.document(documents)).squeeze(1)


ranker = Ranker()
optimizer = torch.optim.Adam(ranker.parameters(), lr=3e-3)
for step in range(120):
    query, documents = torch.randn(1, 10), torch.randn(24, 10)
    relevance = (documents[:, :3].sum(1) + query[:, 0]) / 2
    loss = nn.functional.mse_loss(ranker(query, documents), relevance)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
