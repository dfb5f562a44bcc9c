"""Models are trained one after the other, and each is gone as soon as the script drops it."""

import sys
import weakref

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.body(x)

    def __del__(self):
        print("dropped", self.number)


torch.manual_seed(0)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for number in range(5):
    model = Model(number)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    kept = model.state_dict()
    watched = [weakref.ref(x) for x in (model, optimizer, model.body[0].weight, loss, output)]
    final = loss.item()
    print("drop")
    del optimizer, loss, output
    if number < 4:
        del model
    print([reference() is None for reference in watched], final)
torch.save(kept, sys.argv[1])
