"""The state is read at the last word."""

import torch
from torch import nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 24, padding_idx=0)
        self.rnn = nn.LSTM(24, 32, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, ids, lengths):
        states, _ = self.rnn(self.words(ids))
        return self.out(states[torch.arange(len(ids)), lengths - 1])


torch.manual_seed(0)
model = Router()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(80):
    ids, lengths, y = torch.randint(4, 60, (32, 60)), torch.randint(3, 12, (32,)), torch.randint(0, 3, (32,))
    ids[torch.arange(32), (torch.rand(32) * lengths).long()] = 1 + y
    ids[torch.arange(60)[None] >= lengths[:, None]] = 0
    loss = nn.functional.cross_entropy(model(ids, lengths), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
