"""Learns start values from which one step of descent does much: gradients of gradients, weights passed by hand."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    total = torch.zeros(())
    for _ in range(2):
        phase = torch.rand(1)
        x, new_x = torch.rand(8, 1), torch.rand(8, 1)
        weights = dict(model.named_parameters())
        loss = torch.nn.functional.mse_loss(torch.func.functional_call(model, weights, (x,)), torch.sin(x + phase))
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        moved = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        predicted = torch.func.functional_call(model, moved, (new_x,))
        total = total + torch.nn.functional.mse_loss(predicted, torch.sin(new_x + phase))
    total.backward()
    optimizer.step()
    print(step, total.item())
torch.save(model.state_dict(), sys.argv[1])
