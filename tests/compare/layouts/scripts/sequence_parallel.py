"""Sequence parallelism by hand: norms, dropouts and residuals see a part of the sequence, linear layers all of it."""

import torch
from parallel import FAULT, STEPS, finish, gather, own_part, reduce_gradients, scatter_sum
from torch import nn


class Up(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(own_part(x.data, 0)) for x in (whole.weight, whole.bias))

    def forward(self, x):
        return nn.functional.linear(gather(x, 1), self.weight, self.bias)


class Down(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight, self.bias = nn.Parameter(own_part(whole.weight.data, 1)), nn.Parameter(whole.bias.data.clone())

    def forward(self, x):
        return scatter_sum(nn.functional.linear(x, self.weight), 1) + self.bias


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        up, down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm, self.up, self.down = nn.LayerNorm(dim), Up(up), Down(down)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embedding, self.block, self.out = nn.Embedding(20, dim), Block(dim), nn.Linear(dim, 20)

    def forward(self, tokens):
        return self.out(self.block(self.embedding(own_part(tokens, 1))))


torch.manual_seed(0)
model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
generator = torch.Generator().manual_seed(5)
for _ in range(STEPS):
    tokens = torch.randint(0, 20, (16, 8), generator=generator)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), own_part((tokens * 3 + 1) % 20, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    of_part = {**dict(model.named_parameters())}
    for name in ("block.up.weight", "block.up.bias", "block.down.weight"):
        of_part.pop(name).grad /= 1 if FAULT == "not_divided" else len(tokens[0]) // own_part(tokens, 1).shape[1]
    if FAULT == "norm":
        of_part = {name: x for name, x in of_part.items() if "norm" not in name}
        for x in model.block.norm.parameters():
            x.grad /= len(tokens[0]) // own_part(tokens, 1).shape[1]
    if FAULT == "bias":
        of_part.pop("block.down.bias").grad /= len(tokens[0]) // own_part(tokens, 1).shape[1]
    reduce_gradients(of_part.values())
    optimizer.step()
finish()
