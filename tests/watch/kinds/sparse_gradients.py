"""An embedding with sparse gradients, and SparseAdam next to a dense optimizer."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
embedding = nn.EmbeddingBag(100, 16, mode="mean", sparse=True)
head = nn.Linear(16, 4)
sparse = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
dense = torch.optim.Adam(head.parameters(), lr=1e-2)
for step in range(25):
    ids = torch.randint(0, 100, (16, 5))
    loss = nn.functional.cross_entropy(head(embedding(ids)), ids[:, 0] % 4)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save({"embedding": embedding.state_dict(), "head": head.state_dict()}, sys.argv[1])
