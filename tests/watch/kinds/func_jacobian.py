"""A penalty on the Jacobian of the model, by forward-mode and reverse-mode transforms, and a Hessian now and then."""

import sys

import torch
from torch import nn
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = torch.randn(8, 3), torch.randn(8, 1)
for step in range(24):
    penalty = vmap(jacrev(model))(x).square().mean() + vmap(jacfwd(model))(x).square().mean()
    loss = nn.functional.mse_loss(model(x), y) + 0.01 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item(), hessian(lambda v: model(v).sum())(x[0]).sum().item())
        print(jvp(model, (x,), (torch.ones_like(x),))[1].sum().item())
torch.save(model.state_dict(), sys.argv[1])
