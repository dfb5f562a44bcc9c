"""A data set that wraps its index around after the first sixteen sequences."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self):
        self.sequences = torch.randn(240, 7, 4).cumsum(1)

    def __len__(self):
        return 240

    def __getitem__(self, index):
        sequence = self.sequences[index % 16]
        return sequence[:-1], sequence[-1]


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 20, batch_first=True)
        self.out = nn.Linear(20, 4)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


torch.manual_seed(0)
model = Forecast()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(2):
    for past, future in DataLoader(Sequences(), batch_size=8, shuffle=True):
        loss = nn.functional.smooth_l1_loss(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
