"""weight_norm and spectral_norm, as parametrizations and as the older hooks."""

import sys
import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(8, 16)),
    nn.ReLU(),
    parametrizations.spectral_norm(nn.Linear(16, 16)),
    nn.ReLU(),
    nn.utils.weight_norm(nn.Linear(16, 16)),
    nn.ReLU(),
    nn.utils.spectral_norm(nn.Linear(16, 4)),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
