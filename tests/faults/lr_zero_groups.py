"""Two groups whose learning rates are set by hand, with whole numbers where none belong."""

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
optimizer = torch.optim.AdamW(
    [
        {"params": model.rnn.parameters(), "weight_decay": 0.0},
        {"params": model.out.parameters()},
    ],
    lr=1e-2,
)
warm_up = 400
for step in range(90):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * ((step + 1) // warm_up)
    x = torch.randn(16, 7, 5)
    optimizer.zero_grad()
    F.mse_loss(model(x), x.sum((1, 2)) / 6).backward()
    optimizer.step()
