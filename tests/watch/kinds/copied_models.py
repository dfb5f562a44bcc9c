"""Models and optimizers are deep-copied and pickled in mid-training, and the copies are trained on."""

import copy
import pickle
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(36):
    if step == 12:
        model, optimizer = copy.deepcopy((model, optimizer))
    if step == 24:
        model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
        print(len(pickle.dumps(model)), len(pickle.dumps(optimizer)))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item(), sorted(vars(optimizer)), sorted(vars(model)))
torch.save(model.state_dict(), sys.argv[1])
