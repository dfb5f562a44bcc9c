"""No module anywhere: leaf tensors, plain functions, an optimizer."""

import sys

import torch

torch.manual_seed(0)
weights = [torch.randn(8, 16, requires_grad=True), torch.zeros(16, requires_grad=True)]
weights += [(torch.randn(16, 1) * 0.1).requires_grad_()]
optimizer = torch.optim.Adam(weights, lr=1e-2)
for step in range(50):
    x = torch.randn(16, 8)
    hidden = torch.relu(x @ weights[0] + weights[1])
    loss = ((hidden @ weights[2]).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(weights, sys.argv[1])
