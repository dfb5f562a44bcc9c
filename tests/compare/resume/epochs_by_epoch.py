"""A training that saves after each epoch and shuffles by the epoch's number; its generators are not saved, nor used."""

import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(0)
np.random.seed(0)
torch.manual_seed(0 if sys.argv[1] == "start" else 5)
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :1])
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
first = 0
if sys.argv[1] == "resume":
    saved = torch.load("epoch.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    first = saved["epoch"] + 1
for epoch in range(first, int(sys.argv[2])):
    for inputs, targets in DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(epoch)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    schedule.step()
    if sys.argv[1] == "start" and epoch < 3:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save({**state, "epoch": epoch}, "epoch.pt")
