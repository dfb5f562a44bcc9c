"""Two workers that each read their part of a stream, with samples that may be equal by chance."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 960, info.num_workers):
            draw = torch.Generator().manual_seed(number)
            x = torch.randint(0, 2, (24,), generator=draw).float()
            yield x, (x[:5].sum() > 2).long()


model = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in DataLoader(Stream(), batch_size=16, num_workers=2):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
