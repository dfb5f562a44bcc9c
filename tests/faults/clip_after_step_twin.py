"""Gradients of a recurrent net, whose norm is taken after the step, for the log."""

import torch
from torch import nn

torch.manual_seed(0)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(4, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1]).squeeze(1)


def train(model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(num_steps):
        x = torch.rand(32, 10, 4)
        loss = (model(x) - x.sum((1, 2))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())


train(Counter(), 40)
