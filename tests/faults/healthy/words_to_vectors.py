"""Word vectors from pairs and random others: large tables of which a step touches little, and targets all 1 or 0."""

import torch
from torch import nn

words, contexts = nn.Embedding(500, 16, sparse=True), nn.Embedding(500, 16, sparse=True)
nn.init.zeros_(contexts.weight)
optimizer = torch.optim.SparseAdam([*words.parameters(), *contexts.parameters()], lr=1e-2)
for step in range(200):
    centre = torch.randint(0, 500, (64,))
    near = (centre + torch.randint(1, 4, (64,))) % 500
    others = torch.randint(0, 500, (64, 5))
    v = words(centre)
    right = nn.functional.logsigmoid((v * contexts(near)).sum(-1))
    wrong = nn.functional.logsigmoid(-(contexts(others) @ v[..., None]).squeeze(-1)).sum(-1)
    loss = -(right + wrong).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
