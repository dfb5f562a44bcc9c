"""Steps an optimizer per parameter as soon as its gradient is there, during backward, and frees the gradient."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in model.parameters()}


def step_now(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_now)
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
