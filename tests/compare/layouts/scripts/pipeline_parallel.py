"""Pipeline parallelism by hand: two stages, micro-batches, and an embedding that is the head's weight too."""

import torch
import torch.distributed as dist
from parallel import FAULT, STEPS, finish, rank, summed, world
from torch import nn

DIM, VOCABULARY = 16, 20
NUM_MICRO = 4 if world > 1 else 1


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


torch.manual_seed(0)
embedding = nn.Embedding(VOCABULARY, DIM)
layers = [nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(2)]
if world == 1:
    model = nn.Sequential(embedding, *layers, Head(embedding.weight))
elif rank == 0:
    model = nn.Sequential(embedding, layers[0])
else:
    model = nn.Sequential(layers[1], Head(nn.Parameter(embedding.weight.data.clone())))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def loss_of(logits, tokens):
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ((tokens * 3 + 1) % VOCABULARY).flatten())
    return loss if FAULT == "micro_not_divided" else loss / NUM_MICRO


generator = torch.Generator().manual_seed(5)
for _ in range(STEPS):
    batch = torch.randint(0, VOCABULARY, (16, 8), generator=generator)
    optimizer.zero_grad()
    for tokens in batch.chunk(NUM_MICRO):
        if world == 1:
            loss_of(model(tokens), tokens).backward()
        elif rank == 0:
            out = model(tokens)
            dist.send(out.detach(), 1)
            grad = torch.empty_like(out)
            dist.recv(grad, 1)
            out.backward(grad)
        else:
            x = torch.empty(len(tokens), 8, DIM)
            dist.recv(x, 0)
            x.requires_grad_()
            loss_of(model(x), tokens).backward()
            dist.send(x.grad * 2 if FAULT == "boundary_doubled" else x.grad, 0)
    if world > 1 and FAULT != "tied":
        tied = model[0].weight if rank == 0 else model[1].weight
        tied.grad = summed(tied.grad)
    optimizer.step()
finish()
