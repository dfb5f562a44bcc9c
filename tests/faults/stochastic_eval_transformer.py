"""Dropout as a function, called without saying whether the model is in training."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + F.dropout(self.mlp(self.norm2(x)), 0.2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 32)
        self.layers = nn.ModuleList([Layer(32), Layer(32)])
        self.head = nn.Linear(32, 4)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(60):
    model.train()
    ids = torch.randint(0, 20, (16, 8))
    loss = F.cross_entropy(model(ids), ids[:, 0] % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            ids = torch.randint(0, 20, (64, 8))
            print(step, loss.item(), F.cross_entropy(model(ids), ids[:, 0] % 4).item())
