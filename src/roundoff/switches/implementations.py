"""Other implementations of an op: in fp64, on the CPU, composed of simpler ops, or a function of the user."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from roundoff.errors import SwitchError, first_line
from roundoff.record.ops.op_table import OpInfo, written_arguments
from roundoff.record.reference.convolution import can_convolve, convolve
from roundoff.record.reference.exact_rerun import can_unroll, unroll, with_floats_as
from roundoff.record.reference.op_call import OpCall, list_tensors
from roundoff.torch_private import aten_op, decomposition_of, one_by_one


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention output, and the logsumexp of the scores of each query."""
    scores = _scores(query, key, is_causal=is_causal, mask=attn_mask, scale=scale)
    logsumexp = scores.logsumexp(-1)
    return (_weights(scores, logsumexp) @ _wide(value)).to(query.dtype), logsumexp


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    grad = _wide(grad_out)
    weights = _weights(_scores(query, key, is_causal=is_causal, mask=attn_mask, scale=scale), _wide(logsumexp))
    of_weights = grad @ _wide(value).mT
    of_scores = weights * (of_weights - (grad * _wide(out)).sum(-1, keepdim=True)) * _scale(query, scale)
    found = of_scores @ _wide(key), of_scores.mT @ _wide(query), weights.mT @ grad
    return found[0].to(query.dtype), found[1].to(key.dtype), found[2].to(value.dtype)


def _scores(query: Tensor, key: Tensor, *, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = (_wide(query) @ _wide(key).mT) * _scale(query, scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    return weights.masked_fill(logsumexp.isneginf().unsqueeze(-1), 0)  # a query whose keys are all masked


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


ATTENTION: Final[Mapping[Any, Callable[..., Any]]] = {
    aten_op("_scaled_dot_product_flash_attention_for_cpu.default"): attention,
    aten_op("_scaled_dot_product_flash_attention_for_cpu_backward.default"): attention_backward,
}


_NUM_ELEMENTS = 1 << 22
"""How many products are in memory at a time."""


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of two batches of matrices, adding up in at least fp32.

    >>> bmm(torch.ones(1, 2, 3), torch.ones(1, 3, 4)).tolist()
    [[[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]]
    """
    wide = torch.promote_types(a.dtype, torch.float32) if a.is_floating_point() else a.dtype
    rows = max(1, _NUM_ELEMENTS // max(1, b.numel()))
    parts = [(part.unsqueeze(-1).to(wide) * b.unsqueeze(1)).sum(2, dtype=wide) for part in a.split(rows, dim=1)]
    return torch.cat(parts, 1).to(a.dtype)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, adding up in at least fp32."""
    return bmm(a[None], b[None])[0]


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return the product of two matrices plus `bias`."""
    product = alpha * mm(a, b)
    return product if beta == 0 else product + beta * bias


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return the products of two batches of matrices plus `bias`."""
    product = alpha * bmm(a, b)
    return product if beta == 0 else product + beta * bias


PRODUCTS: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.ops.aten.mm.default: mm,
    torch.ops.aten.bmm.default: bmm,
    torch.ops.aten.addmm.default: addmm,
    torch.ops.aten.baddbmm.default: baddbmm,
}


def load_function(name: str) -> Callable[..., Any]:
    """Import a function by its name, `module:function` or `file.py:function`; the working directory is searched too.

    Raises:
        SwitchError: there is no such module or function, or importing it fails.
    """
    place, _, function_name = name.rpartition(":")
    try:
        function = getattr(_module(place), function_name)
    except Exception as error:
        raise SwitchError.explain(
            f"The function '{name}' cannot be found.",
            why=f"{type(error).__name__}: {first_line(error)}",
            fix="write module:function, or file.py:function.",
        ) from error
    if not callable(function):
        raise SwitchError.explain(f"'{name}' is not a function.", why=f"it is a {type(function).__name__}.")
    found: Callable[..., Any] = function
    return found


def _module(place: str) -> ModuleType:
    folder = str(Path.cwd())
    is_new = folder not in sys.path
    if is_new:
        sys.path.insert(0, folder)
    try:
        return _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    finally:
        if is_new:
            sys.path.remove(folder)


def _module_of_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TORCHS_LIBRARIES: Final = frozenset({"aten", "mkl", "mkldnn", "onednn", "prim", "prims", "quantized"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The tensors that a call computed."""

    returned: list[Tensor]
    """Those it returned, without views of its arguments; those it wrote to, if it returns nothing."""
    written: list[Tensor]
    """Arguments that it wrote to."""


class NotImplementedHereError(Exception):
    """This implementation has no version of the op; the message says why, and is empty if none is needed."""


Implementation = Callable[[OpCall, OpInfo], Results]
"""Runs a call without changing its tensors.

Raises NotImplementedHereError, or whatever the other implementation raises.
"""


def results_of(call: OpCall, info: OpInfo, result: Any) -> Results:
    """Return the tensors of a call that returned `result`."""
    written = written_arguments(call.signature.op, info, call.args, call.kwargs)
    if info.views and isinstance(result, tuple):
        result = [entry for place, entry in enumerate(result) if place not in info.views]
    return Results(returned=written if result is None else list_tensors(result), written=written)


def implementation_named(name: str) -> Implementation:
    """Find an implementation: `fp64`, `cpu`, `decomposed`, or a function, `module:function` or `file.py:function`.

    Raises:
        SwitchError: it does not exist.
    """
    if name in IMPLEMENTATIONS:
        return IMPLEMENTATIONS[name]
    if ":" not in name:
        raise SwitchError.explain(
            f"There is no implementation '{name}'.",
            why=f"the implementations are {', '.join(IMPLEMENTATIONS)}, and your own functions.",
            fix="use one of them, or module:function.",
        )
    return UsersFunction(load_function(name))


def is_torchs_own(op: str) -> bool:
    """Whether an operator, `aten.gelu`, is one of torch's own, not one from another library."""
    return op.partition(".")[0] in _TORCHS_LIBRARIES


def runs_own_kernel(implementation: Implementation, op: Any, name: str) -> bool:
    """Whether an implementation computes an operator of another library by the operator's own kernel.

    Torch has its own kernels for fp64, and decompositions; an operator of another library has one kernel for all
    formats, and an error in it, or in its formula for the gradient, stays.
    """
    if is_torchs_own(name):
        return False
    return implementation is in_fp64 or (implementation is run_decomposed and decomposition_of(op) is None)


def in_fp64(call: OpCall, info: OpInfo) -> Results:
    """Run the call with every float made fp64."""
    if not any(x.is_floating_point() and x.dtype != torch.float64 for x in call.tensors()):
        raise NotImplementedHereError  # it already computes in fp64, or without floats
    if can_convolve(call):
        return Results(returned=convolve(call), written=[])
    if can_unroll(call):
        return results_of(call, info, tuple(unroll(call)))
    return _run(with_floats_as(call, torch.float64), info)


def on_cpu(call: OpCall, info: OpInfo) -> Results:
    """Run the call on the CPU."""
    if all(x.device.type == "cpu" for x in call.tensors()):
        raise NotImplementedHereError  # it already runs there
    cpu = torch.device("cpu")
    there = call.change(lambda _, value: cpu if isinstance(value, torch.device) else value)
    return _run(with_floats_as(there.change_tensors(Tensor.cpu), None), info)


def run_decomposed(call: OpCall, info: OpInfo) -> Results:
    """Run the op composed of other ops: by torch's decomposition, or by those in `decompositions`."""
    op, copied = call.signature.op, with_floats_as(call, None)
    if can_convolve(copied):
        return Results(returned=convolve(copied), written=[])
    parts = PRODUCTS.get(op) or ATTENTION.get(op) or decomposition_of(op)
    if parts is not None:
        return results_of(copied, info, parts(*copied.args, **copied.kwargs))
    if not call.signature.is_foreach:
        raise NotImplementedHereError("torch has no decomposition of it.")
    return results_of(copied, info, one_by_one(op)(*copied.args, **copied.kwargs))


class UsersFunction:
    """Calls a function `f(op, *args, **kwargs)`, which returns the result of the op, or NotImplemented."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, call: OpCall, info: OpInfo) -> Results:
        """Compute the op by the function."""
        copied = with_floats_as(call, None)
        result = self.function(info.name, *copied.args, **copied.kwargs)
        if result is NotImplemented:
            raise NotImplementedHereError
        return results_of(copied, info, result)


def _run(call: OpCall, info: OpInfo) -> Results:
    return results_of(call, info, call.signature.op(*call.args, **call.kwargs))


IMPLEMENTATIONS: Final[Mapping[str, Implementation]] = {"fp64": in_fp64, "cpu": on_cpu, "decomposed": run_decomposed}
