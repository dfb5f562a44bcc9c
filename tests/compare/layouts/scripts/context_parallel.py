"""Context parallelism by hand: queries are those of this rank's part of the sequence, keys and values are gathered."""

import torch
from parallel import FAULT, STEPS, Exchange, finish, gather, gathered, own_part, rank, reduce_gradients
from torch import nn

DIM, LENGTH = 16, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        if FAULT == "keys_not_summed":
            k, v = (Exchange.apply(y, lambda y: gathered(y, 1), lambda grad: own_part(grad, 1)) for y in (k, v))
        else:
            k, v = gather(k, 1), gather(v, 1)
        first = 0 if FAULT == "mask_from_zero" else rank * x.shape[1]
        mask = torch.arange(first, first + x.shape[1])[:, None] >= torch.arange(k.shape[1])
        scores = (q @ k.mT / DIM**0.5).masked_fill(~mask, -1e9)
        return self.out(torch.softmax(scores, -1) @ v)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention, self.norm = nn.Embedding(20, DIM), Attention(), nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 20)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(self.norm(x + self.attention(x)))


torch.manual_seed(0)
model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
generator = torch.Generator().manual_seed(5)
for _ in range(STEPS):
    tokens = torch.randint(0, 20, (16, LENGTH), generator=generator)
    part, targets = own_part(tokens, 1), own_part((tokens.cumsum(1)) % 20, 1)
    loss = nn.functional.cross_entropy(model(part).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    if FAULT != "not_reduced":
        reduce_gradients(model.parameters(), average=FAULT != "not_averaged")
    optimizer.step()
finish()
