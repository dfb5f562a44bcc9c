"""Pictures are shifted and dimmed at random by a transform with a generator of its own, a copy of it in each worker."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shift:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def __call__(self, picture):
        return picture.roll(self.random.randint(-2, 2), 1) * self.random.uniform(0.6, 1.0)


class Pictures(Dataset):
    def __init__(self, transform):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 4, (256,), generator=generator)
        self.pictures = torch.rand(256, 1, 12, 12, generator=generator)
        self.pictures[torch.arange(256), 0, self.labels * 3] += 1.0
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.pictures[index]), self.labels[index]


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(2):
    for pictures, labels in DataLoader(Pictures(Shift(1)), batch_size=16, shuffle=True, num_workers=2):
        loss = nn.functional.cross_entropy(net(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
