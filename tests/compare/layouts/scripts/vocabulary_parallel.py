"""A vocabulary that is divided between ranks: embedding, head and loss work on parts of it."""

import torch
import torch.distributed as dist
from parallel import (
    FAULT,
    STEPS,
    Exchange,
    copy_to_ranks,
    finish,
    gathered,
    own_part,
    rank,
    sum_over_ranks,
    summed,
    world,
)
from torch import nn

VOCABULARY, DIM = 24, 16
FIRST = rank * (VOCABULARY // world)


def local(tokens, size):
    inside = (tokens >= FIRST) & (tokens < FIRST + size)
    return (tokens - FIRST).masked_fill(~inside, 0), ~inside


class Embedding(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(own_part(weight.data, 0))

    def forward(self, tokens):
        index, outside = local(tokens, len(self.weight))
        rows = nn.functional.embedding(index, self.weight).masked_fill(outside.unsqueeze(-1), 0.0)
        return sum_over_ranks(rows)


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(own_part(weight.data, 0))

    def forward(self, h):
        return nn.functional.linear(copy_to_ranks(h), self.weight)


def loss_of(logits, targets):
    if FAULT == "gathered":  # its backward sums what is the same on every rank
        whole = Exchange.apply(logits, lambda x: gathered(x, -1), lambda grad: own_part(summed(grad), -1))
        return nn.functional.cross_entropy(whole, targets)
    largest = logits.detach().amax(-1, keepdim=True)
    if world > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    shifted = logits - largest
    exponentials = shifted.exp().sum(-1)
    total = exponentials if FAULT == "local_softmax" else sum_over_ranks(exponentials)
    index, outside = local(targets, logits.shape[-1])
    own = shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
    return (total.log() - sum_over_ranks(own)).mean()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        whole = nn.Embedding(VOCABULARY, DIM), nn.Linear(DIM, VOCABULARY, bias=False)
        self.embedding, self.mix, self.head = Embedding(whole[0].weight), nn.Linear(DIM, DIM), Head(whole[1].weight)

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.embedding(tokens))))


torch.manual_seed(3)
model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
generator = torch.Generator().manual_seed(11)
for _ in range(STEPS):
    tokens = torch.randint(0, VOCABULARY, (64,), generator=generator)
    loss = loss_of(model(tokens), (tokens * 5 + 1) % VOCABULARY)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
finish()
