"""Two ranks that exchange gradients by hand and forget the statistics of their norms."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(24)
network = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)
)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(rank)
for _ in range(15):
    pictures = torch.rand(8, 1, 8, 8) * (1 + rank)
    loss = nn.functional.cross_entropy(network(pictures), torch.randint(0, 2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    for p in network.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.mul_(0.5)
    optimizer.step()
dist.destroy_process_group()
