"""Attention whose mask hides every key from one sample, in step 3."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, hidden):
        q, k, v = self.qkv(x).chunk(3, -1)
        logits = q @ k.transpose(-1, -2) / 8**0.5
        logits = logits.masked_fill(hidden[:, None, :], float("-inf"))
        return logits.softmax(-1) @ v  # here


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.head = nn.Linear(8, 4)

    def forward(self, x, hidden):
        return self.head(self.attention(x, hidden).mean(1))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    x, hidden = torch.randn(4, 6, 8), torch.zeros(4, 6, dtype=torch.bool)
    hidden[1, 4:] = True
    if step == 3:
        hidden[2] = True
    loss = nn.functional.cross_entropy(model(x, hidden), torch.randint(0, 4, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
