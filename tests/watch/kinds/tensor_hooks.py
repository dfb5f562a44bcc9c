"""Hooks on tensors in the loop, on parameters, on modules: they scale, count and collect."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
seen = {"gradients": 0, "forwards": 0}


def count(module, args, output):
    seen["forwards"] += 1


def clamp(parameter):
    parameter.grad.clamp_(-0.1, 0.1)


model[0].weight.register_hook(lambda gradient: gradient * 0.5)
model[2].bias.register_post_accumulate_grad_hook(clamp)
model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.9,))
model.register_forward_hook(count)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    x = torch.randn(16, 8)
    logits = model(x)
    logits.register_hook(lambda gradient: gradient * 2)
    logits.retain_grad()
    loss = nn.functional.cross_entropy(logits, x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), seen["forwards"], logits.grad.norm().item())
assert seen["forwards"] == 50
torch.save(model.state_dict(), sys.argv[1])
