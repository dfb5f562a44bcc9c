"""A half-precision transformer whose query, key and value weights came out 900 times too large."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        size = width // self.num_heads
        q, k, v = (
            part.reshape(batch, length, self.num_heads, size).transpose(1, 2).reshape(-1, length, size)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / size**0.5, dim=-1)
        mixed = torch.bmm(weights, v).reshape(batch, self.num_heads, length, size).transpose(1, 2)
        return self.out(mixed.reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, 2)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, num_tokens=20, width=32):
        super().__init__()
        self.embed = nn.Embedding(num_tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, num_tokens)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Transformer().half()
with torch.no_grad():
    model.blocks[1].attn.qkv.weight.mul_(900)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    tokens = torch.randint(0, 20, (8, 12))
    loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
