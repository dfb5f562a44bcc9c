"""Stochastic weight averaging at the end of a training, with new statistics for the norms of the average."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

x = torch.randn(320, 10)
y = x[:, :3].argmax(1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
for epoch in range(10):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch >= 5:
        averaged.update_parameters(model)
        schedule.step()
update_bn(loader, averaged)
averaged.eval()
with torch.no_grad():
    print(nn.functional.cross_entropy(averaged(x), y).item())
