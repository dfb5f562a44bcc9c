"""A recurrent regression whose scaled gradients are cut at a value."""

import torch
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
adam = torch.optim.Adam(model.parameters(), lr=5e-3)
amp = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=40)
for _ in range(90):
    x = torch.randn(16, 7, 5)
    error = (model(x) - x.sum((1, 2)) / 6).square().mean()
    amp.scale(error).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    amp.step(adam)
    amp.update()
    adam.zero_grad()
