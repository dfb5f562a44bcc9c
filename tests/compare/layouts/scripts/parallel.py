"""What the scripts have in common: the ranks, and what passes between them in forward and backward."""

import os
import sys

import torch
import torch.distributed as dist

FAULT, _, FORMAT = (sys.argv[1] if len(sys.argv) > 1 else "").partition("+")
if FORMAT == "bf16":
    torch.set_default_dtype(torch.bfloat16)
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if world > 1 else 0


def summed(x, group=None):
    total = x.detach().clone().contiguous()
    if world > 1:
        dist.all_reduce(total, group=group)
    return total


def gathered(x, dim):
    if world == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world)]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts, dim)


def own_part(x, dim):
    return x.chunk(world, dim)[rank].clone()


class Exchange(torch.autograd.Function):
    """Applies one function in forward and another to the gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_function = backward
        return forward(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.backward_function(grad), None, None


def same(x):
    return x.clone()


def copy_to_ranks(x):
    """The same on every rank; gradients are summed."""
    return Exchange.apply(x, same, summed)


def sum_over_ranks(x):
    """The sum of all ranks; the gradient passes as it is."""
    return Exchange.apply(x, summed, same)


def gather(x, dim):
    """All parts; each rank's part of the gradient, summed over ranks."""
    return Exchange.apply(x, lambda x: gathered(x, dim), lambda grad: own_part(summed(grad), dim))


def scatter_sum(x, dim):
    """This rank's part of the sum of all ranks; in backward all parts are gathered."""
    return Exchange.apply(x, lambda x: own_part(summed(x), dim), lambda grad: gathered(grad, dim))


def reduce_gradients(parameters, *, average=True):
    for parameter in parameters:
        parameter.grad = summed(parameter.grad) / (world if average else 1)


def finish():
    if world > 1:
        dist.destroy_process_group()
