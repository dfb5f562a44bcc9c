"""Sample 100 of the data holds a NaN; it comes in step 6, as the fifth of its batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(192, 8), torch.randint(0, 4, (192,))
x[100, 2] = float("nan")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=16):
    loss = nn.functional.cross_entropy(model(inputs), labels)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
