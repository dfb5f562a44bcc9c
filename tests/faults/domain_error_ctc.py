"""A reader that pools its pictures down to fewer time steps than some targets need."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(16, 6, 1))
criterion = nn.CTCLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    x = torch.randn(8, 4, 24)
    scores = model(x).permute(2, 0, 1).log_softmax(2)
    targets = torch.randint(1, 6, (8, 5)) if step < 4 else torch.full((8, 5), 2)
    loss = criterion(scores, targets, torch.full((8,), 6), torch.full((8,), 5))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
