"""Weight norm and spectral norm in their older form: hooks that write the weight before each forward."""

import sys
import warnings

import torch
from torch import nn
from torch.nn.utils import remove_weight_norm, spectral_norm, weight_norm

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(weight_norm(nn.Linear(8, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
remove_weight_norm(model[0])
torch.save(model.state_dict(), sys.argv[1])
