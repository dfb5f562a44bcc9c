"""A training that goes on from a checkpoint, with the position of its schedule."""

import io

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(320, 10)
Y = (X[:, :2].sum(1) > 0).long()


def build():
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)


def train(model, optimizer, schedule, epochs):
    for _ in range(epochs):
        for part in torch.randperm(320).split(32):
            loss = nn.functional.cross_entropy(model(X[part]), Y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(loss.item(), schedule.get_last_lr())


model, optimizer, schedule = build()
train(model, optimizer, schedule, 10)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "opt": optimizer.state_dict(), "sched": schedule.state_dict()}, file)
file.seek(0)
model, optimizer, schedule = build()
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["opt"])
schedule.load_state_dict(checkpoint["sched"])
train(model, optimizer, schedule, 10)
