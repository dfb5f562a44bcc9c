"""Warnings are printed once per line as usual, recorded in blocks, and reset in mid-training."""

import sys
import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
own = warnings.filters
for step in range(24):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = nn.functional.mse_loss(model(x).sum(1), torch.zeros(32))
        nn.functional.mse_loss(x[:, 0], torch.zeros(1))  # of another shape: torch warns
    if caught:
        print(step, [str(warning.message)[:40] for warning in caught])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (4, 5):
        warnings.warn("said once", stacklevel=1)
    if step == 10:
        print(warnings.filters is own)
        warnings.resetwarnings()
        print(warnings.filters)
torch.save(model.state_dict(), sys.argv[1])
