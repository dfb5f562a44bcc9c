"""Tensor parallelism by hand: blocks whose first weight is divided by columns and whose second by rows."""

import torch
from parallel import FAULT, STEPS, Exchange, copy_to_ranks, finish, own_part, rank, same, sum_over_ranks, summed
from torch import nn

DROPOUT = 0.1 if FAULT.startswith("dropout") else 0.0


class Up(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(own_part(whole.weight.data, 0))
        self.bias = nn.Parameter(own_part(whole.bias.data, 0))

    def forward(self, x):
        x = x if FAULT == "no_sum_in_backward" else copy_to_ranks(x)
        return nn.functional.linear(x, self.weight, self.bias)


class Down(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(own_part(whole.weight.data, 1))
        self.bias = nn.Parameter(whole.bias.data.clone())

    def forward(self, x):
        if FAULT == "bias_on_each_rank":
            return sum_over_ranks(nn.functional.linear(x, self.weight, self.bias))
        y = nn.functional.linear(x, self.weight)
        if FAULT == "double":
            y = Exchange.apply(y, summed, summed)
        elif FAULT == "no_sum_in_forward":
            y = Exchange.apply(y, same, same)
        else:
            y = sum_over_ranks(y)
        return y + self.bias


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        up, down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm, self.up, self.down = nn.LayerNorm(dim), Up(up), Down(down)
        self.inner, self.outer = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)

    def forward(self, x):
        h = torch.relu(self.up(self.norm(x)))
        if DROPOUT:
            self.calls = getattr(self, "calls", 0) + 10_000
            torch.manual_seed(self.calls + (99 if FAULT == "dropout_same" else 1000 + rank))
            h = self.inner(h)
            torch.manual_seed(self.calls + (rank if FAULT == "dropout_differs" else 5))
        return x + self.outer(self.down(h))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), Block(16), Block(16), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(7 + (rank if FAULT == "inputs_differ" else 0))
for step in range(STEPS):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step + (rank if FAULT == "inputs_differ" else 0)))
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    if FAULT == "local_clip":
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
finish()
