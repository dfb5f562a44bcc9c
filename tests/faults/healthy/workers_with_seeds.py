"""Workers that draw from numpy and Python, as torch seeds them, and a generator that a function of the loader seeds."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Noisy(Dataset):
    def __init__(self):
        self.order = np.random.default_rng()
        self.rng = np.random.default_rng()
        self.places = np.arange(256)

    def shuffle(self):
        self.order.shuffle(self.places)

    def __len__(self):
        return 256

    def __getitem__(self, index):
        label = self.places[index] % 4
        noise = np.random.normal(size=12) + self.rng.normal(size=12) * random.random()
        noise[label] += 3.0
        return torch.from_numpy(noise).float(), int(label)


def seed_worker(number):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


data = Noisy()
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    data.shuffle()
    for x, y in DataLoader(data, batch_size=16, shuffle=True, num_workers=2, worker_init_fn=seed_worker):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
