"""A forecast of values around 5 by a recurrent net that ends in a tanh."""

import torch
from torch import nn


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Sequential(nn.Linear(24, 1), nn.Tanh())

    def forward(self, x):
        return self.out(self.rnn(x[..., None])[0][:, -1]).squeeze(-1)


torch.manual_seed(0)
series = 5 + 3 * torch.sin(torch.linspace(0, 40, 1000))
windows, following = series.unfold(0, 16, 1)[:-1], series[16:]
model = Forecast()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(60):
    rows = torch.randint(0, len(following), (32,))
    loss = nn.functional.l1_loss(model(windows[rows]), following[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
