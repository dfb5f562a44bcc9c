"""Several models are trained as one, by vmap over their stacked parameters."""

import copy
import sys

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(3)]
parameters, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    outputs = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    loss = nn.functional.cross_entropy(outputs.flatten(0, 1), y.repeat(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
torch.save(parameters, sys.argv[1])
