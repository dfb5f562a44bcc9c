"""Each worker has a seed of its own: its generator is made in the worker, from what torch says about it."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Problems(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(7)
        self.is_seeded = False

    def __len__(self):
        return 640

    def __getitem__(self, index):
        if not self.is_seeded:
            self.rng = np.random.default_rng(get_worker_info().seed)
            self.is_seeded = True
        x = self.rng.normal(size=10).astype(np.float32)
        return torch.from_numpy(x), int(x[:3].argmax())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in DataLoader(Problems(), batch_size=16, num_workers=2):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
