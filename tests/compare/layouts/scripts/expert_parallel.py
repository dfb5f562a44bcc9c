"""Experts divided between ranks: every rank has its part of the batch and sends samples to where their expert is."""

import torch
from parallel import FAULT, STEPS, Exchange, finish, gathered, own_part, rank, reduce_gradients, summed, world
from torch import nn

DIM, NUM_EXPERTS = 16, 4
OWN = range(rank * NUM_EXPERTS // world, (rank + 1) * NUM_EXPERTS // world)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        every = [nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(NUM_EXPERTS)]
        self.experts = nn.ModuleList([every[number] for number in OWN])

    def forward(self, x, chosen):
        whole = Exchange.apply(x, lambda x: gathered(x, 0), lambda grad: own_part(summed(grad), 0))
        chosen = gathered(chosen, 0)
        results = sum(
            torch.where((chosen == number)[:, None], expert(whole), 0.0)
            for number, expert in zip(OWN, self.experts, strict=True)
        )
        return Exchange.apply(results, lambda x: own_part(summed(x), 0), lambda grad: gathered(grad, 0))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.router, self.leave = nn.Linear(8, DIM), nn.Linear(DIM, NUM_EXPERTS), nn.Linear(DIM, 4)
        self.mixture = Experts()

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        weight, chosen = torch.softmax(self.router(h), -1).max(-1)
        return self.leave(h + weight[:, None] * self.mixture(h, chosen))


torch.manual_seed(1)
model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(30)
for _ in range(STEPS):
    x = own_part(torch.randn(32, 8, generator=generator), 0)
    loss = nn.functional.cross_entropy(model(x), x[:, 1:5].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    shared = [*model.enter.parameters(), *model.leave.parameters()]
    if FAULT != "router_not_reduced":
        shared += model.router.parameters()
    reduce_gradients(shared)
    if FAULT != "experts_not_divided":
        for parameter in model.mixture.parameters():
            if parameter.grad is not None:
                parameter.grad /= world
    optimizer.step()
finish()
