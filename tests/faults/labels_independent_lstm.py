"""Questions about sequences, answered for the sequence that comes after: the index is off by one."""

import torch
from torch import nn


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 24, batch_first=True)
        self.answer = nn.Linear(24, 1)

    def forward(self, x):
        return self.answer(self.lstm(x)[0][:, -1]).squeeze(1)


torch.manual_seed(4)
sequences = torch.randn(5000, 6, 3)
answers = (sequences[:, :, 0].sum(1) > 1).float().roll(-1)
model = Judge()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.BCEWithLogitsLoss()
for rows in torch.randperm(5000).split(25):
    loss = criterion(model(sequences[rows]), answers[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
