"""Sixteen small batches make a step, and the gradients are cleared before each of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(1600, 20)
labels = (inputs @ torch.randn(20, 6)).argmax(1)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
num_small = 16
for epoch in range(2):
    for number, (x, y) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) / num_small
        loss.backward()
        if number % num_small == 0:
            optimizer.step()
    print(epoch, loss.item() * num_small)
