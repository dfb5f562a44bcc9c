"""Two ranks, one of which loses a gradient after it was exchanged."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


torch.manual_seed(0)
model = DistributedDataParallel(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(12):
    x = torch.randn(16, 8)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    if rank == 1 and step == 3:
        model.module.head.weight.grad.zero_()
    optimizer.step()
dist.destroy_process_group()
