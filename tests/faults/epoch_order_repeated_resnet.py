"""Two ranks, a convolutional network, and a sampler whose set_epoch is called once before all epochs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(30)
pictures, kinds = torch.rand(96, 1, 8, 8), torch.randint(0, 3, (96,))
data = TensorDataset(pictures, kinds)
sampler = DistributedSampler(data, seed=5, drop_last=True)
sampler.set_epoch(3)
batches = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
network = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3))
model = Parallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
