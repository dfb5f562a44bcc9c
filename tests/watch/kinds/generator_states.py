"""The states of all generators are printed after every step."""

import hashlib
import random
import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(24):
    x = torch.randn(32, 8) + random.random() + np.random.rand()
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    states = (torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes(), repr(random.getstate()))
    print(step, hashlib.sha256(repr(states).encode()).hexdigest()[:16], torch.initial_seed())
torch.save(model.state_dict(), sys.argv[1])
