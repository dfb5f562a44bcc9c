"""A half-precision transformer with an RMSNorm of its own, after an embedding of huge activations."""

import torch
import torch.nn.functional as F
from torch import nn


class RootMeanSquare(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.before = RootMeanSquare(size)
        self.mix = nn.MultiheadAttention(size, 4, batch_first=True)
        self.after = RootMeanSquare(size)
        self.feed = nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))

    def forward(self, x):
        h = self.before(x)
        x = x + self.mix(h, h, h, need_weights=False)[0]
        return x + self.feed(self.after(x))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.layers = nn.ModuleList([Layer(32), Layer(32)])
        self.unembed = nn.Linear(32, 50)

    def forward(self, words):
        x = self.words(words) * 400
        for layer in self.layers:
            x = layer(x)
        return self.unembed(x / 400)


torch.manual_seed(2)
language = Language().half()
sgd = torch.optim.SGD(language.parameters(), lr=0.05)
for _ in range(20):
    words = torch.randint(0, 50, (8, 12))
    loss = F.cross_entropy(language(words).float().transpose(1, 2), words)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
print(loss.item())
