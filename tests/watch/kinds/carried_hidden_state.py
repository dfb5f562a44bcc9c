"""An LSTM whose hidden state is carried, detached, from batch to batch."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 12, batch_first=True)
        self.head = nn.Linear(12, 6)

    def forward(self, x, state=None):
        out, state = self.lstm(x, state)
        return self.head(out), state


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
state = None
text = torch.randn(4, 50 * 5 + 1, 6)
for step in range(50):
    part = text[:, step * 5 : step * 5 + 6]
    predicted, state = model(part[:, :-1], state)
    state = tuple(h.detach() for h in state)
    loss = nn.functional.mse_loss(predicted, part[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
