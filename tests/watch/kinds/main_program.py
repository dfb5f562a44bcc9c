"""What a main program sees of itself."""

import os
import pickle
import sys

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x)


print(__name__, __file__, __package__, __spec__, __doc__, type(__loader__).__name__)
print(sys.argv[0], sys.argv[1:], sys.path[0])
print(sorted(name for name in globals() if name.startswith("__")))
print(vars(sys.modules["__main__"]) is globals(), sys.modules["__main__"].Model is Model)
print(
    [name for name in os.listdir() if not name.startswith(".")],
    sys.excepthook is sys.__excepthook__,
    sys.getrecursionlimit(),
)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model = pickle.loads(pickle.dumps(model)) if step == 20 else model
    if step == 20:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.save(model.state_dict(), sys.argv[1])
