"""Every warning is an error; the script's filters stay what it made them."""

import sys
import warnings

import torch
from torch import nn

print(len([entry for entry in warnings.filters if entry[1] is not None and "hooks" in entry[1].pattern]))
warnings.simplefilter("error")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for _ in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
try:
    warnings.warn("caught", stacklevel=1)
except UserWarning as error:
    print(error)
print(warnings.filters[0])
torch.save(model.state_dict(), sys.argv[1])
