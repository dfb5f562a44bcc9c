"""Two ranks that share the weights of a body, and each make a head of their own."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(22)
body = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
torch.manual_seed(22 + dist.get_rank())
head = nn.Linear(32, 3)
network = nn.Sequential(body, head)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
for _ in range(15):
    waves = torch.randn(12, 2, 20)
    loss = nn.functional.cross_entropy(network(waves), (waves.mean((1, 2)) > 0).long())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in network.parameters()])
    dist.all_reduce(flat)
    flat /= 2
    place = 0
    for p in network.parameters():
        p.grad.copy_(flat[place : place + p.numel()].view_as(p))
        place += p.numel()
    optimizer.step()
dist.destroy_process_group()
