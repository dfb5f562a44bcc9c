"""A transformer whose attention logits are huge: weights far too large, and no division by the root of the width."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.out(torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v)


class Model(nn.Module):
    def __init__(self, num_tokens=30, width=32):
        super().__init__()
        self.embed = nn.Embedding(num_tokens, width)
        self.norm = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.head = nn.Linear(width, num_tokens)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.attn(self.norm(x)).mean(1))


torch.manual_seed(0)
model = Model()
with torch.no_grad():
    model.attn.qkv.weight.mul_(60)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(40):
    tokens = torch.randint(0, 30, (16, 16))
    loss = F.cross_entropy(model(tokens), tokens.amax(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
