"""A squared error written by hand inside the model's own method, with one dimension too many on one side."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, series, future):
        predicted = self.head(self.lstm(series)[0][:, -1])
        error = predicted - future
        return (error**2).mean()


torch.manual_seed(1)
model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(50):
    series = torch.randn(24, 12, 3)
    loss = model(series, series.sum((1, 2)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
