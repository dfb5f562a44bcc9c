"""Tensor parallelism by hand: columns, then rows; ranks hold other parts and get the same batch."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ColumnParallel(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs // world, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs // world))

    def forward(self, x):
        return nn.functional.linear(CopyToRanks.apply(x), self.weight, self.bias)


class RowParallel(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs // world) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return SumOverRanks.apply(nn.functional.linear(x, self.weight)) + self.bias


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = ColumnParallel(dim, 4 * dim), RowParallel(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


torch.manual_seed(0)
embed, head = nn.Linear(8, 16), nn.Linear(16, 4)
torch.manual_seed(100 + rank)
blocks = [Block(16), Block(16)]
model = nn.Sequential(embed, *blocks, head)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(7)
for step in range(40):
    x = torch.randn(32, 8)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
