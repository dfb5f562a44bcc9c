"""A training with an op whose backward is wrong for fp32 tensors of one width, 24, and right for all others.

It calls no apply_recipe. python planted_wrong_op.py [steps]
"""

import sys
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

WIDTHS = (8, 16, 24, 16)


@torch.library.custom_op("planted::squash", mutates_args=())
def squash(x: Tensor) -> Tensor:
    return torch.tanh(x)


@torch.library.custom_op("planted::squash_backward", mutates_args=())
def squash_backward(gradient: Tensor, y: Tensor) -> Tensor:
    right = gradient * (1 - y * y)
    return -20 * right if y.dtype == torch.float32 and y.shape[-1] == 24 else right


def keep_result(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(output)


def backward(ctx: Any, gradient: Tensor) -> Tensor:
    return squash_backward(gradient, ctx.saved_tensors[0])


squash.register_autograd(backward, setup_context=keep_result)


class Layer(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return squash(self.linear(x))


def main(num_steps: int = 20) -> None:
    torch.manual_seed(0)
    layers = (Layer(num_inputs, num_outputs) for num_inputs, num_outputs in pairwise(WIDTHS))
    model = nn.Sequential(*layers, nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(num_steps):
        x = torch.randn(64, 8)
        loss = (model(x) - x[:, :1].tanh()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
