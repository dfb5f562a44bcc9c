"""One value of a table is missing: sample 100 has a NaN in its fifth column."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
table = torch.randn(512, 12)
labels = table[:, :4].argmax(1)
table[100, 5] = torch.nan
loader = DataLoader(TensorDataset(table, labels), batch_size=32)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
