"""Half-precision attention with a causal mask of -inf and a padding mask of the smallest number there is."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        logits = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        lowest = torch.finfo(x.dtype).min
        logits = logits + padding[:, None].to(x.dtype) * lowest + padding[:, None].to(x.dtype) * lowest
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.out(logits.masked_fill(causal, float("-inf")).softmax(-1) @ v)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.norm = nn.LayerNorm(32)
        self.attn = Attention(32)
        self.head = nn.Linear(32, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.attn(self.norm(x), tokens == 0))


torch.manual_seed(0)
model = Reader().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(25):
    tokens = torch.randint(1, 20, (16, 10))
    tokens[torch.arange(10)[None] >= torch.randint(2, 11, (16,))[:, None]] = 0
    loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
