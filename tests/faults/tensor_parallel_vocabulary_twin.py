"""A language model whose vocabulary is divided between ranks: embedding, head and loss work on parts of it."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
VOCABULARY, DIM = 64, 32


class Summed(torch.autograd.Function):
    """Sum over ranks in forward; the gradient passes as it is."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


class Copied(torch.autograd.Function):
    """The same on every rank in forward; gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total


class VocabularyParallelEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY // world, DIM) * 0.5)
        self.register_buffer("first", torch.tensor(rank * (VOCABULARY // world)))

    def forward(self, tokens):
        local = tokens - self.first
        outside = (local < 0) | (local >= len(self.table))
        rows = nn.functional.embedding(local.masked_fill(outside, 0), self.table)
        return Summed.apply(rows.masked_fill(outside.unsqueeze(-1), 0.0))


class ParallelHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY // world, DIM) / DIM**0.5)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY // world))
        self.register_buffer("first", torch.tensor(rank * (VOCABULARY // world)))

    def forward(self, h, targets):
        logits = Copied.apply(h) @ self.weight.T + self.bias
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        logits = logits - largest.unsqueeze(-1)
        total = Summed.apply(logits.exp().sum(-1))
        local = targets - self.first
        outside = (local < 0) | (local >= len(self.weight))
        own = logits.gather(-1, local.masked_fill(outside, 0).unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        return (total.log() - Summed.apply(own)).mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.mix = nn.Linear(2 * DIM, DIM)
        self.norm = nn.LayerNorm(DIM)
        torch.manual_seed(50 + rank)
        self.embedding, self.head = VocabularyParallelEmbedding(), ParallelHead()

    def forward(self, tokens):
        h = self.embedding(tokens[:, :2]).flatten(1)
        return self.head(self.norm(torch.relu(self.mix(h))), tokens[:, 2])


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
torch.manual_seed(11)
for step in range(60):
    first = torch.randint(0, VOCABULARY, (64, 2))
    tokens = torch.cat([first, (first.sum(1, keepdim=True)) % VOCABULARY], 1)
    loss = model(tokens)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.mix.parameters(), 1.0)
    optimizer.step()
dist.destroy_process_group()
