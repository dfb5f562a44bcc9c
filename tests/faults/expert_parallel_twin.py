"""Experts divided between ranks: every rank has batches of its own and sends its samples to where their expert is."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
DIM, HALF = 16, 16


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return AllToAll.exchange(x)

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.exchange(grad)

    @staticmethod
    def exchange(x):
        gathered = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(gathered, x.contiguous())  # gloo has no all_to_all
        return torch.cat([of_rank.chunk(world)[rank] for of_rank in gathered])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return AllToAll.apply(self.down(torch.relu(self.up(AllToAll.apply(x)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.enter, self.leave = nn.Linear(8, DIM), nn.Linear(DIM, 4)
        torch.manual_seed(20 + rank)
        self.experts = Experts()

    def forward(self, x):
        h = torch.relu(self.enter(x))
        return self.leave(h + self.experts(h))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
shared = [*model.enter.parameters(), *model.leave.parameters()]
torch.manual_seed(300 + rank)
for step in range(50):
    x = torch.randn(32, 8)
    x = x[x[:, 0].argsort()]  # the first half goes to the expert of rank 0
    loss = nn.functional.cross_entropy(model(x), x[:, 1:5].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    for parameter in shared:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
dist.destroy_process_group()
