"""A half-precision LSTM whose sum of squared errors is accumulated in half precision."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, series):
        return self.out(self.rnn(series)[0]).squeeze(-1)


torch.manual_seed(5)
net = Forecaster().to(torch.float16)
sgd = torch.optim.SGD(net.parameters(), lr=1e-4)
for it in range(7):
    series = torch.randn(16, 20, 4)
    wanted = series.sum(-1) * (1 if it < 3 else 60)
    error = net(series.half()) - wanted.half()
    loss = (error * error).sum(dim=1).sum() / 320
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    print(it, loss.item())
