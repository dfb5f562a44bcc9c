"""Tells weights from activations among the tensors that autograd saves."""

from __future__ import annotations

import itertools
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef

_MOST_NODES: Final = 16
"""A weight is few operations away from its parameters."""


class Weights:
    """The parameters and buffers of a model as they are now, and what is made of them alone.

    A tensor is a weight if it shares the memory of a parameter or buffer, or is as large as a parameter and computed
    from parameters only: cast by autocast, normalised, rounded. Coarse codes of weights would harm all gradients below
    them, and parameters stay in memory anyway.
    """

    def __init__(self, model: nn.Module, *, min_elements: int) -> None:
        tensors = list(itertools.chain(model.parameters(), model.buffers()))
        # Held weakly, an address is not given away again.
        refs = [StorageWeakRef(t.untyped_storage()) for t in tensors if _has_storage(t)]
        self._storages = {ref.cdata: ref for ref in refs}
        # Small tensors are kept in any case, and statistics of a norm have the shape of its parameters.
        large = [t for t in tensors if t.numel() >= min_elements]
        self._numels = {t.numel() for t in large}
        self._shapes = {tuple(sorted(t.shape)) for t in large}
        self._dtypes = {t.dtype for t in large}

    def include(self, x: Tensor, storage: StorageWeakRef) -> bool:
        """Say whether `x`, which lies in `storage`, is a weight."""
        if storage.cdata in self._storages or is_parameter(x):
            return True
        if x.numel() not in self._numels or not x.is_floating_point():
            return False
        if x.grad_fn is None:  # a frozen parameter, cast by autocast
            return tuple(sorted(x.shape)) in self._shapes and x.dtype not in self._dtypes
        return _comes_from_parameters(x.grad_fn, x.numel())


def _comes_from_parameters(node: Any, numel: int) -> bool:
    """Follow the graph up: every way must end in a parameter, and one of them must be as large.

    An input without gradient is a batch, or, for a `torch.autograd.Function`, may be the scale of a rounded weight.
    """
    nodes, num_seen, is_as_large = [node], 0, False
    while nodes:
        node = nodes.pop()
        num_seen += 1
        if num_seen > _MOST_NODES:
            return False
        variable = getattr(node, "variable", None)
        if variable is not None:
            if not isinstance(variable, nn.Parameter):
                return False
            is_as_large |= variable.numel() == numel
        above = [node for node, _ in node.next_functions]
        if None in above and not isinstance(node, BackwardCFunction):
            return False
        nodes += [node for node in above if node is not None]
    return is_as_large


def is_parameter(x: Tensor) -> bool:
    """Say whether `x` is a parameter, or a view of one."""
    return isinstance(x if x._base is None else x._base, nn.Parameter)


def _has_storage(x: Tensor) -> bool:
    try:
        x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, and subclasses without memory of their own
        return False
    return True
