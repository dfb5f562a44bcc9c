"""Gradients are zeroed right after backward, and clipped, and then used."""

import torch
import torch.nn.functional as F
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])[:, 0]


torch.manual_seed(1)
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(80):
    x = torch.randn(16, 7, 5)
    error = F.smooth_l1_loss(model(x), x.sum((1, 2)) / 6)
    error.backward()
    model.zero_grad(set_to_none=False)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
