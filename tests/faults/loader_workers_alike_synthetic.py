"""Problems are made up as they are read, with a generator that each worker has a copy of."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Problems(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(7)

    def __len__(self):
        return 512

    def __getitem__(self, index):
        x = self.rng.normal(size=10).astype(np.float32)
        return torch.from_numpy(x), int(x[:3].argmax())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for x, y in DataLoader(Problems(), batch_size=16, num_workers=2):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
