"""A language model with torch's fused attention, whose projections start far too large."""

import torch
import torch.nn.functional as F
from torch import nn


class Heads(nn.Module):
    def __init__(self, size, count):
        super().__init__()
        self.count = count
        self.query, self.key, self.value, self.merge = (nn.Linear(size, size, bias=False) for _ in range(4))
        for projection in (self.query, self.key):
            nn.init.normal_(projection.weight, std=3.0)

    def forward(self, x):
        batch, length, size = x.shape
        split = lambda y: y.view(batch, length, self.count, size // self.count).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(mixed.transpose(1, 2).reshape(x.shape))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(40, 32), nn.Embedding(24, 32)
        self.norm = nn.LayerNorm(32)
        self.heads = Heads(32, 2)
        self.next = nn.Linear(32, 40)

    def forward(self, letters):
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1]))
        return self.next(x + self.heads(self.norm(x)))


torch.manual_seed(15)
writer = Writer()
optimizer = torch.optim.SGD(writer.parameters(), lr=0.01)
for step in range(20):
    letters = torch.randint(0, 40, (12, 24))
    loss = F.cross_entropy(writer(letters)[:, :-1].flatten(0, 1), letters[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(writer.parameters(), 1.0)
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
