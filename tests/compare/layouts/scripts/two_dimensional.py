"""Tensor and data parallelism on four ranks: neighbours share the work of a layer, pairs the batch."""

import torch
import torch.distributed as dist
from parallel import FAULT, STEPS, Exchange, finish, rank, same, summed, world
from torch import nn

TP = 2 if world > 1 else 1
DP = world // TP
tp_groups = [dist.new_group([TP * i, TP * i + 1]) for i in range(DP)] if world > 1 else [None]
dp_groups = [dist.new_group(list(range(i, world, TP))) for i in range(TP)] if world > 1 else [None]
tp_rank, dp_rank = rank % TP, rank // TP


def tp_sum(x):
    return summed(x, tp_groups[dp_rank])


class Up(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.data.chunk(TP, 0)[tp_rank].clone())
        self.bias = nn.Parameter(whole.bias.data.chunk(TP, 0)[tp_rank].clone())

    def forward(self, x):
        copied = Exchange.apply(x, same, same if FAULT == "no_sum_over_tp" else tp_sum)
        return nn.functional.linear(copied, self.weight, self.bias)


class Down(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.data.chunk(TP, 1)[tp_rank].clone())
        self.bias = nn.Parameter(whole.bias.data.clone())

    def forward(self, x):
        return Exchange.apply(nn.functional.linear(x, self.weight), tp_sum, same) + self.bias


torch.manual_seed(0)
up, down = nn.Linear(16, 64), nn.Linear(64, 16)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), Up(up), nn.ReLU(), Down(down), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(7)
for _ in range(STEPS):
    x = torch.randn(32, 8, generator=generator).chunk(DP)[dp_rank]
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if FAULT != "shards_not_reduced" or name not in ("2.weight", "2.bias", "4.weight"):
            over = None if FAULT == "reduced_over_all" else dp_groups[tp_rank]
            parameter.grad = summed(parameter.grad, over) / DP
    optimizer.step()
finish()
