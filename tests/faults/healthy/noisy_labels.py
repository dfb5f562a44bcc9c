"""Every third label is wrong, as labels of the web are: the loss comes down only a little."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
for step in range(250):
    x = torch.randn(48, 12)
    labels = x[:, :4].argmax(1)
    labels = torch.where(torch.rand(48) < 0.35, torch.randint(0, 4, (48,)), labels)
    loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
