"""Two ranks with a model that has a second head which no loss asks for."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 32)
        self.head = nn.Linear(32, 4)
        self.other = nn.Linear(32, 2)

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.head(h), self.other(h)


torch.manual_seed(0)
model = DistributedDataParallel(TwoHeads())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(10):
    x = torch.randn(16, 8)
    scores, _ = model(x)
    loss = F.cross_entropy(scores, x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
