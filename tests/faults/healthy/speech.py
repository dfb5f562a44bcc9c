"""Sequences of different lengths with a loss that aligns them by itself."""

import torch
from torch import nn


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 6)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)


model = Listener()
criterion = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
codes = torch.randn(6, 8)
for step in range(60):
    words = torch.randint(1, 6, (8, 5))
    lengths = torch.randint(3, 6, (8,))
    sounds = codes[words].repeat_interleave(3, 1) + 0.3 * torch.randn(8, 15, 8)
    loss = criterion(model(sounds), words, torch.full((8,), 15), lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
