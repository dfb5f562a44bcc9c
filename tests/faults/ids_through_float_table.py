"""A recommender that is given one bf16 table of numbers, whose first column is the number of the item."""

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(1200, 24)
        self.dense = nn.Linear(3, 24)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(24, 1))

    def forward(self, table):
        table = table.to(torch.bfloat16)
        item, rest = table[:, 0], table[:, 1:]
        return self.score(self.items(item.long()) + self.dense(rest.float())).squeeze(1)


torch.manual_seed(14)
model = Recommender()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
items = torch.randint(0, 1190, (1000,))
table = torch.cat([items[:, None].float(), torch.randn(1000, 3)], 1)
ratings = (items % 7).float() / 7
for step in range(15):
    rows = torch.randperm(1000)[:64]
    loss = (model(table[rows]) - ratings[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
