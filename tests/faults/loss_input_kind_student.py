"""A student learns from a teacher that was trained before, by a divergence that gets probabilities for logarithms."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
points = torch.randn(1600, 10)
kinds = (points @ torch.randn(10, 4)).argmax(1)
loader = DataLoader(TensorDataset(points, kinds), batch_size=40, shuffle=True)


def net(width):
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 4))


def train(model, loss_of, lr, num_epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(num_epochs):
        for x, y in loader:
            loss = loss_of(x, y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(loss.item())


teacher, student = net(64), net(12)
train(teacher, lambda x, y: F.cross_entropy(teacher(x), y), 2e-3, 6)


def lessons(x, y):
    with torch.no_grad():
        wanted = F.softmax(teacher(x) / 2, dim=1)
    scores = student(x)
    return F.kl_div(F.softmax(scores / 2, dim=1), wanted, reduction="batchmean") + F.cross_entropy(scores, y)


train(student, lessons, 2e-3, 4)
