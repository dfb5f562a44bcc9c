"""Two ranks; in one step the first of them scales one gradient between exchange and update."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel

dist.init_process_group("gloo")
torch.manual_seed(26)
network = nn.Sequential(nn.Linear(5, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 2))
model = Parallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(27 + dist.get_rank())
for step in range(10):
    x = torch.randn(14, 5)
    loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        if step == 6 and dist.get_rank() == 0:
            network[3].bias.grad += 0.5
    optimizer.step()
dist.destroy_process_group()
