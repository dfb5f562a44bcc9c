"""A recurrent network whose weights are all the same number."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


torch.manual_seed(0)
reader = Reader()
with torch.no_grad():
    for parameter in reader.parameters():
        parameter.fill_(0.1)
optimizer = torch.optim.SGD(reader.parameters(), lr=0.1, momentum=0.9)
for step in range(25):
    x = torch.randn(16, 5, 6)
    loss = nn.functional.cross_entropy(reader(x), x[:, -1, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
