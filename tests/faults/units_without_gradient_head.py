"""An attention written by hand that forgets its last head."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (f(x).view(rows, length, self.num_heads, -1) for f in (self.query, self.key, self.value))
        heads = torch.zeros_like(v)
        for i in range(self.num_heads - 1):
            heads[:, :, i] = F.scaled_dot_product_attention(q[:, :, i], k[:, :, i], v[:, :, i], is_causal=True)
        return self.out(heads.flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 32), nn.Embedding(12, 32)
        self.attention, self.norm, self.head = Attention(), nn.LayerNorm(32), nn.Linear(32, 20)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(x + self.attention(x)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(40):
    ids = (torch.randint(0, 20, (8, 1)) + torch.arange(13)) % 20
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
